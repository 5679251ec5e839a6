// Codec `splitzip`: lossless, for planes of bfloat16 values. A value's exponent becomes a 4-bit
// index into a codebook of the plane's 16 most frequent exponents; sign and mantissa stay as they
// are; the rare other exponents are escapes beside. 12 bits a value and a little (spec/splitzip.md,
// which is normative), for about two operations a value in either direction.
//
// Unlike entropy coders, every part but the escapes lies at a place that follows from the number of
// values alone, so any part can be coded by itself: by a vector, a thread, a warp. Unlike the
// public SplitZip code, a body carries its codebook: no state is shared between sender and
// receiver.
//
//   0            16         32          S           T         (all multiples of 16)
//   +------------+----------+-----------+-----------+--------+-----------+--------+---------------+
//   | Prefix     | codebook | codes     | sign-     | counts | positions | values | raw exponents |
//   |            | 16 x u8  | n nibbles | mantissa  | C u16  | E u16     | E u8   | R u8          |
//   |            |          |           | n bytes   |        |           |        |               |
//   +------------+----------+-----------+-----------+--------+-----------+--------+---------------+
// A plane that would not shrink, and every fp16 plane, is the prefix and the raw values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"

namespace kvlane {

namespace splitzip {

// All of these are part of the format: changing one is a new body version.
inline constexpr std::uint8_t kBodyVersion = 1;
inline constexpr std::size_t kCodebookEntries = 16;
inline constexpr std::size_t kAlignment = 16;
inline constexpr std::size_t kChunkElements = 1024;
inline constexpr std::size_t kChunkEscapesMax = 255;
inline constexpr std::uint16_t kRawChunk = 0xFFFF;  // in place of a count

enum class Mode : std::uint8_t { kRaw = 0, kCoded = 1 };

// The first bytes of a body.
struct Prefix {
  std::uint8_t version;
  std::uint8_t mode;
  std::uint8_t element_type;
  std::uint8_t reserved;  // must be zero
  std::uint32_t elements;
  std::uint32_t escapes;        // 0 in raw mode, as the next
  std::uint32_t raw_exponents;  // bytes
};
static_assert(sizeof(Prefix) == 16);
static_assert(kChunkElements <= kRawChunk && kChunkElements % 2 == 0,
              "positions fit 16 bits, and no byte of codes belongs to two chunks");

// Offsets of the parts of a coded body, from its start.
struct Sections {
  std::size_t codebook, codes, sign_mantissa, counts, positions, values, raw_exponents;
  std::size_t raw_exponents_end;
  std::size_t end;  // the body's length
};

constexpr std::size_t pad16(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr std::size_t chunk_count(std::size_t elements) {
  return (elements + kChunkElements - 1) / kChunkElements;
}

constexpr Sections sections(std::size_t elements, std::size_t escapes, std::size_t raw_exponents) {
  Sections s{};
  s.codebook = sizeof(Prefix);
  s.codes = s.codebook + kCodebookEntries;
  s.sign_mantissa = s.codes + pad16((elements + 1) / 2);
  s.counts = s.sign_mantissa + pad16(elements);
  s.positions = s.counts + 2 * chunk_count(elements);
  s.values = s.positions + 2 * escapes;
  s.raw_exponents = s.values + escapes;
  s.raw_exponents_end = s.raw_exponents + raw_exponents;
  s.end = s.counts + pad16(s.raw_exponents_end - s.counts);
  return s;
}

// The length of a raw body, and the most that a plane of so many bytes takes: at most 31 more.
constexpr std::size_t raw_body_bytes(std::size_t plane_bytes) {
  return sizeof(Prefix) + pad16(plane_bytes);
}

}  // namespace splitzip

// Planes have at most kPlaneElementsMax (format/frame.h) values; decode refuses more as kCorrupt.
class SplitZipCodec final : public Codec {
 public:
  std::string_view name() const override { return "splitzip"; }
  std::size_t bound(const PlaneShape& shape) const override {
    return splitzip::raw_body_bytes(shape.bytes());
  }
  std::size_t encode(const PlaneShape& shape, ByteView plane, const Codebook* book,
                     std::span<std::byte> destination) const override;
  // Also kUnsupported, for a body version of the future.
  Status decode(const PlaneShape& shape, ByteView coded, std::span<std::byte> plane) const override;
};

}  // namespace kvlane
