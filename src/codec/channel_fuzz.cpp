// splitzip:channel on bytes from strangers, on all tiers at once: every tier gives the same
// verdict, the same values and the same body. The first bytes choose what happens and the shape.
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

// Heap blocks of exactly the promised sizes, so that AddressSanitizer sees every slip.
struct Block {
  explicit Block(std::size_t size) : bytes(std::make_unique<std::byte[]>(size)), size(size) {}
  explicit Block(ByteView from) : Block(from.size()) {
    std::copy(from.begin(), from.end(), bytes.get());
  }
  std::span<std::byte> span() const { return {bytes.get(), size}; }
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size;
};

Bytes encode(Isa isa, const PlaneShape& shape, ByteView plane) {
  const ChannelCodec codec(isa);
  const Block body(codec.bound(shape));
  const std::size_t bytes = codec.encode(shape, Block(plane).span(), nullptr, body.span());
  require(bytes <= body.size);
  return {body.bytes.get(), body.bytes.get() + bytes};
}

// The plane, or nothing when the body was refused.
Bytes decode(Isa isa, const PlaneShape& shape, ByteView body, bool& good) {
  const Block plane(shape.bytes());
  good = ChannelCodec(isa).decode(shape, Block(body).span(), plane.span()).ok();
  return good ? Bytes(plane.bytes.get(), plane.bytes.get() + plane.size) : Bytes();
}

void round_trip(const PlaneShape& shape, ByteView plane) {
  const Bytes body = encode(Isa::kScalar, shape, plane);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    require(encode(isa, shape, plane) == body);
    bool good = false;
    const Bytes decoded = decode(isa, shape, body, good);
    require(good && std::equal(decoded.begin(), decoded.end(), plane.begin(), plane.end()));
  }
}

void decode_untrusted(const PlaneShape& shape, ByteView body) {
  bool good = false;
  const Bytes plane = decode(Isa::kScalar, shape, body, good);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    bool other = false;
    require(decode(isa, shape, body, other) == plane && other == good);
  }
  if (good) round_trip(shape, plane);
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

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 5) return 0;
  PlaneShape shape{ElementType::kBf16, 1 + data[1] % 4, 1 + data[2] % 130, 1 + data[3] % 200};
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
