// All tiers of `splitzip` against the scalar one: on hostile bodies the same verdict and the same
// plane, on any plane the same body. A frame is its K body (golden files are the seeds); else the
// first bytes choose type, task and codebook.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "codec/splitzip_fixture.h"
#include "format/frame.h"

namespace kvlane {
namespace {

using namespace splitzip_fixture;

void require(bool condition) {
  if (!condition) std::abort();
}

// Small planes are many planes. More does not reach other code, but stores around the caches.
constexpr std::size_t kElementsMax = 1 << 14;

const Codec& codec_of(Isa isa) { return **find_codec("splitzip", isa); }

// Decodes on every tier. What decodes at all must survive a round trip.
void compare_decoders(ElementType type, ByteView body) {
  // The count that the body itself claims, within reason, or most inputs would end at that check.
  std::uint32_t elements = 0;
  if (body.size() >= 8) std::memcpy(&elements, body.data() + 4, sizeof(elements));
  const PlaneShape shape = shape_of(type, elements % kElementsMax);
  Bytes expected, plane;
  const Status judged = decode_exactly(codec_of(Isa::kScalar), body, shape, expected);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    const Status status = decode_exactly(codec_of(isa), body, shape, plane);
    require(status.code() == judged.code() && status.message() == judged.message());
    require(!status.ok() || plane == expected);
  }
}

void compare_encoders(const Plane& plane, const Codebook* book) {
  const Bytes expected = encode_exactly(codec_of(Isa::kScalar), plane, book);
  Bytes decoded;
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    require(encode_exactly(codec_of(isa), plane, book) == expected);
    require(decode_exactly(codec_of(isa), expected, plane.shape, decoded).ok());
    require(decoded == plane.bytes);
  }
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 2 || size > 2 * kElementsMax) return 0;
  if (size > kFrameHeaderBytes && data[0] == 0x8B && data[1] == 'K') {
    std::uint32_t k_bytes = 0;
    std::memcpy(&k_bytes, data + 148, sizeof(k_bytes));
    const std::size_t there = size - kFrameHeaderBytes;
    const auto type = static_cast<ElementType>(2 + data[120] % 4);  // kBf16 ... kFp8E5m2
    compare_decoders(type, std::as_bytes(std::span(data + kFrameHeaderBytes,
                                                   std::min<std::size_t>(there, k_bytes))));
    return 0;
  }
  constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3,
                                    ElementType::kFp8E5m2};
  const ElementType type = kTypes[data[0] & 3];
  const ByteView input = std::as_bytes(std::span(data + 2, size - 2));
  if ((data[0] & 4) == 0) {
    compare_decoders(type, input);
    return 0;
  }
  Plane plane{shape_of(type, input.size() / element_bytes(type)), {}};
  if ((data[0] & 8) != 0) {
    // Inputs are short: repeated, they make planes that are worth coding.
    const std::size_t elements = plane.shape.elements();
    const std::size_t times =
        std::min<std::size_t>(1 + data[1] % 32, 1 + kElementsMax / (1 + elements));
    plane.shape = shape_of(type, elements * times);
    while (plane.bytes.size() < plane.shape.bytes() && !input.empty()) {
      plane.bytes.insert(plane.bytes.end(), input.begin(), input.end());
    }
    plane.bytes.resize(plane.shape.bytes());
  } else {
    plane.bytes.assign(input.begin(), input.begin() + plane.shape.bytes());
  }
  Random rng(data[1]);
  const Codebook book = random_codebook(type, rng, (data[0] & 16) != 0);
  compare_encoders(plane, (data[0] & 32) != 0 ? &book : nullptr);
  return 0;
}
