// splitzip:channel on bytes from strangers, on all tiers at once: every tier gives the same
// verdict in the same words, the same values and the same body. The first bytes choose what
// happens, the type, the shape and where in memory all this lies.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/channel.h"

namespace kvlane {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Parts of heap blocks that end where the blocks end, so that AddressSanitizer sees every slip; and
// begin there too, unless a shift has them begin at odd addresses.
std::size_t shift = 0;

class Block {
 public:
  explicit Block(std::size_t size) : bytes_(std::make_unique<std::byte[]>(shift + size)) {
    span_ = {bytes_.get() + shift, size};
  }
  explicit Block(ByteView from) : Block(from.size()) {
    std::copy(from.begin(), from.end(), span_.begin());
  }
  std::span<std::byte> span() const { return span_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::span<std::byte> span_;
};

Bytes encode(Isa isa, const PlaneShape& shape, ByteView plane) {
  const ChannelCodec codec(isa);
  const Block body(codec.bound(shape));
  const std::size_t bytes = codec.encode(shape, Block(plane).span(), nullptr, body.span());
  require(bytes <= body.span().size());
  return {body.span().begin(), body.span().begin() + bytes};
}

// The plane, or nothing when the body was refused.
Bytes decode(Isa isa, const PlaneShape& shape, ByteView body, Status& verdict) {
  const Block plane(shape.bytes());
  verdict = ChannelCodec(isa).decode(shape, Block(body).span(), plane.span());
  return verdict.ok() ? Bytes(plane.span().begin(), plane.span().end()) : Bytes();
}

void round_trip(const PlaneShape& shape, ByteView plane) {
  const Bytes body = encode(Isa::kScalar, shape, plane);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    require(encode(isa, shape, plane) == body);
    Status verdict;
    const Bytes decoded = decode(isa, shape, body, verdict);
    require(verdict.ok() && std::equal(decoded.begin(), decoded.end(), plane.begin(), plane.end()));
  }
}

void decode_untrusted(const PlaneShape& shape, ByteView body) {
  Status verdict;
  const Bytes plane = decode(Isa::kScalar, shape, body, verdict);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    Status other;
    require(decode(isa, shape, body, other) == plane);
    require(other.code() == verdict.code() && other.message() == verdict.message());
  }
  if (verdict.ok()) round_trip(shape, plane);
}

// A right body with up to four bytes changed: place (two bytes) and value, from the input.
void damage(const PlaneShape& shape, Bytes body, ByteView changes) {
  for (std::size_t i = 0; i + 3 <= changes.size() && i < 12; i += 3) {
    const auto at = std::to_integer<std::size_t>(changes[i]) << 8 |
                    std::to_integer<std::size_t>(changes[i + 1]);
    body[at % body.size()] = changes[i + 2];
  }
  decode_untrusted(shape, body);
}

// Up to 640 channels: more than a band of any kernel has.
PlaneShape shape_of(const std::uint8_t* choices) {
  constexpr ElementType kTypes[] = {ElementType::kBf16,    ElementType::kBf16,   ElementType::kBf16,
                                    ElementType::kBf16,    ElementType::kBf16,   ElementType::kFp16,
                                    ElementType::kFp8E4m3, ElementType::kFp8E5m2};
  constexpr std::size_t kElementsMax = 1 << 14;  // small planes are many planes
  PlaneShape shape{kTypes[choices[0] >> 2 & 7], 1 + choices[1] % 4, 1 + choices[2] % 130,
                   1 + choices[3] * 5 / 2};
  while (shape.elements() > kElementsMax && shape.kv_heads > 1) --shape.kv_heads;
  while (shape.elements() > kElementsMax) --shape.rows;
  return shape;
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 5) return 0;
  const PlaneShape shape = shape_of(data);
  shift = data[0] >> 5 == 7 ? std::size_t{1} + data[4] % 64 : 0;
  const ByteView input = std::as_bytes(std::span(data + 4, size - 4));
  if ((data[0] & 1) != 0) {
    // The input over and over, or shapes of many values would need long inputs.
    Bytes plane(shape.bytes());
    for (std::size_t i = 0; i < plane.size(); ++i) plane[i] = input[i % input.size()];
    if ((data[0] & 2) != 0) {
      round_trip(shape, plane);
    } else {
      damage(shape, encode(Isa::kScalar, shape, plane), input);
    }
    return 0;
  }
  // A prefix that fits the shape, or most inputs would end at that check.
  Bytes body(sizeof(channel::Prefix) + input.size());
  const channel::Prefix prefix{channel::kBodyVersion,
                               static_cast<std::uint8_t>((data[0] & 2) != 0 ? 0 : 1),
                               static_cast<std::uint8_t>(shape.type),
                               0,
                               static_cast<std::uint32_t>(shape.kv_heads),
                               static_cast<std::uint32_t>(shape.rows),
                               static_cast<std::uint32_t>(shape.head_dim)};
  std::memcpy(body.data(), &prefix, sizeof(prefix));
  std::copy(input.begin(), input.end(), body.begin() + sizeof(prefix));
  decode_untrusted(shape, body);
  return 0;
}
