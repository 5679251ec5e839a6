// Codecs on bytes from strangers: decoding stays in bounds, what decodes can be encoded again, and
// any values survive the round trip. The first bytes choose codec, type and number of values.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/codec.h"

namespace kvlane {
namespace {

using Values = std::vector<std::uint16_t>;

void require(bool condition) {
  if (!condition) std::abort();
}

// Into and from heap blocks of exactly the promised sizes, so that AddressSanitizer sees every
// slip.
void round_trip(const Codec& codec, ElementType type, const Values& values) {
  const std::size_t bound = codec.bound(values.size());
  const auto first = std::make_unique<std::byte[]>(bound);
  const auto second = std::make_unique<std::byte[]>(bound);
  std::memset(first.get(), 0xFF, bound);
  const std::size_t bytes = codec.encode(type, values, {first.get(), bound});
  require(bytes <= bound);
  require(codec.encode(type, values, {second.get(), bound}) == bytes);
  require(bytes == 0 || std::memcmp(first.get(), second.get(), bytes) == 0);
  const auto exact = std::make_unique<std::byte[]>(bytes);
  if (bytes > 0) std::memcpy(exact.get(), first.get(), bytes);
  Values decoded(values.size());
  require(codec.decode(type, {exact.get(), bytes}, decoded).ok());
  require(decoded == values);
}

void decode_untrusted(const Codec& codec, ElementType type, ByteView body, std::size_t elements) {
  const auto exact = std::make_unique<std::byte[]>(body.size());
  if (!body.empty()) std::memcpy(exact.get(), body.data(), body.size());
  Values values(elements);
  if (!codec.decode(type, {exact.get(), body.size()}, values).ok()) return;
  round_trip(codec, type, values);
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 1) return 0;
  const Codec& codec = **find_codec((data[0] & 1) != 0 ? "none" : "splitzip");
  const ElementType type = (data[0] & 2) != 0 ? ElementType::kFp16 : ElementType::kBf16;
  const ByteView input = std::as_bytes(std::span(data + 1, size - 1));
  if ((data[0] & 4) != 0) {
    Values values(input.size() / 2);
    if (!values.empty()) std::memcpy(values.data(), input.data(), values.size() * 2);
    round_trip(codec, type, values);
    return 0;
  }
  // The count that the body itself claims, within reason, or most inputs would end at that check.
  std::uint32_t elements = 0;
  if (input.size() >= 8) std::memcpy(&elements, input.data() + 4, sizeof(elements));
  decode_untrusted(codec, type, input, elements % 65536);
  return 0;
}
