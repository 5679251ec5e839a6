// Codecs on bytes from strangers: decoding stays in bounds, what decodes can be encoded again, and
// any values survive the round trip. The first bytes choose codec, type and number of values.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "codec/codec.h"

namespace kvlane {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

PlaneShape shape_of(ElementType type, std::size_t elements) {
  return {type, 1, 1, static_cast<int>(elements)};
}

// Into and from heap blocks of exactly the promised sizes, so that AddressSanitizer sees every
// slip.
void round_trip(const Codec& codec, const PlaneShape& shape, ByteView plane) {
  const std::size_t bound = codec.bound(shape);
  const auto first = std::make_unique<std::byte[]>(bound);
  const auto second = std::make_unique<std::byte[]>(bound);
  std::fill_n(first.get(), bound, std::byte{0xFF});
  const std::size_t bytes = codec.encode(shape, plane, nullptr, {first.get(), bound});
  require(bytes <= bound);
  require(codec.encode(shape, plane, nullptr, {second.get(), bound}) == bytes);
  require(std::equal(first.get(), first.get() + bytes, second.get()));
  const auto exact = std::make_unique<std::byte[]>(bytes);
  std::copy_n(first.get(), bytes, exact.get());
  const auto decoded = std::make_unique<std::byte[]>(plane.size());
  require(codec.decode(shape, {exact.get(), bytes}, std::span(decoded.get(), plane.size())).ok());
  require(std::equal(plane.begin(), plane.end(), decoded.get()));
}

void decode_untrusted(const Codec& codec, const PlaneShape& shape, ByteView body) {
  const auto exact = std::make_unique<std::byte[]>(body.size());
  std::copy(body.begin(), body.end(), exact.get());
  Bytes plane(shape.bytes());
  if (!codec.decode(shape, {exact.get(), body.size()}, plane).ok()) return;
  round_trip(codec, shape, plane);
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 1) return 0;
  constexpr const char* kNames[] = {"none", "splitzip", "splitzip", "splitzip:channel"};
  const Codec& codec = **find_codec(kNames[(data[0] & 1) | (data[0] >> 3 & 2)]);
  constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3,
                                    ElementType::kFp8E5m2};
  const ElementType type = kTypes[data[0] >> 1 & 3];
  const ByteView input = std::as_bytes(std::span(data + 1, size - 1));
  if ((data[0] & 8) != 0) {
    const PlaneShape shape = shape_of(type, input.size() / element_bytes(type));
    round_trip(codec, shape, input.first(shape.bytes()));
    return 0;
  }
  // The count that the body itself claims, within reason, or most inputs would end at that check.
  std::uint32_t elements = 0;
  if (input.size() >= 8) std::memcpy(&elements, input.data() + 4, sizeof(elements));
  decode_untrusted(codec, shape_of(type, elements % 65536), input);
  return 0;
}
