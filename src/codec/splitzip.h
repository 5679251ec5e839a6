// Codec `splitzip`: lossless, for planes of bfloat16 and FP8 values. A value's exponent becomes a
// short index into a codebook of frequent exponents; sign and mantissa stay as they are; the rare
// other exponents are escapes beside. bfloat16 takes 12 bits a value and a little, FP8 7
// (spec/splitzip.md, which is normative), for about two operations a value in either direction.
//
// Unlike entropy coders, every part but the escapes lies at a place that follows from the number of
// values alone, so any part can be coded by itself: by a vector, a thread, a warp. Unlike the
// public SplitZip code, a body carries its codebook: no state is shared between sender and
// receiver. The dense parts keep values in an order that vectors make without permutations.
//
//   0        16         32   64        A                       T        U              (T, A: x 64)
//   +--------+----------+----+---------+-----------------------+--------+--------------+---+
//   | Prefix | codebook | 0  | nibbles | bf16: bytes           | counts | escape table | 0 |
//   |        | 16 x u8  |    | n x 4b  | FP8: pairs, then bits | C x u8 | W x u16      |   |
//   +--------+----------+----+---------+-----------------------+--------+--------------+---+
// A plane that would not shrink, and every fp16 plane, is the prefix and the raw values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "codec/codec.h"

namespace kvlane {

namespace splitzip {

// All of these are part of the format: changing one is a new body version.
inline constexpr std::uint8_t kBodyVersion = 1;
inline constexpr std::size_t kCodebookEntries = 16;  // FP8 E4M3: the first 8
inline constexpr std::size_t kRawAlignment = 16;
inline constexpr std::size_t kAlignment = 64;  // of sections of coded bodies: a cache line
inline constexpr std::size_t kGroupElements = 128;
inline constexpr std::size_t kChunkElements = 2 * kGroupElements;
inline constexpr std::size_t kChunkEscapesMax = 127;
inline constexpr std::uint8_t kRawChunk = 0xFF;  // in place of a count

enum class Mode : std::uint8_t { kRaw = 0, kCoded = 1 };

// The first bytes of a body.
struct Prefix {
  std::uint8_t version;
  std::uint8_t mode;
  std::uint8_t element_type;
  std::uint8_t reserved_3;  // must be zero
  std::uint32_t elements;
  std::uint32_t table_words;  // 0 in raw mode
  std::uint32_t reserved_12;  // must be zero
};
static_assert(sizeof(Prefix) == 16);
static_assert(kChunkElements == 256, "a place in a chunk is a byte");
static_assert(2 * (kChunkEscapesMax + 1) == kChunkElements,
              "from here on a chunk's exponents take no more than its escapes");

// How a value rotated left by one bit divides (spec/splitzip.md, section 1).
struct Fields {
  int exponent_bits;
  int rest_bits;
  int code_bits;
  int codebook_entries;
};

constexpr bool can_be_coded(ElementType type) {
  return type == ElementType::kBf16 || type == ElementType::kFp8E4m3 ||
         type == ElementType::kFp8E5m2;
}

// Of a type that can be coded.
constexpr Fields fields_of(ElementType type) {
  if (type == ElementType::kFp8E4m3) return {4, 4, 3, 8};
  if (type == ElementType::kFp8E5m2) return {5, 3, 4, 16};
  return {8, 8, 4, 16};
}

// Offsets of the parts of a coded body, from its start, and the ends of those that padding follows.
struct Sections {
  std::size_t codebook, codebook_end;
  std::size_t nibbles, nibbles_end;
  std::size_t bytes, bytes_end;  // bf16; for FP8 empty
  std::size_t pairs, pairs_end;  // FP8; for bf16 empty
  std::size_t bits, bits_end;    // likewise
  std::size_t counts, counts_end;
  std::size_t table, table_end;
  std::size_t end;  // the body's length
};

constexpr std::size_t pad_to(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

constexpr std::size_t chunk_count(std::size_t elements) {
  return (elements + kChunkElements - 1) / kChunkElements;
}

constexpr Sections sections(ElementType type, std::size_t elements, std::size_t table_words) {
  const bool words = type == ElementType::kBf16;
  Sections s{};
  s.codebook = sizeof(Prefix);
  s.codebook_end = s.codebook + static_cast<std::size_t>(fields_of(type).codebook_entries);
  s.nibbles = kAlignment;
  s.nibbles_end = s.nibbles + (elements + 1) / 2;
  s.bytes = pad_to(s.nibbles_end, kAlignment);
  s.bytes_end = s.bytes + (words ? elements : 0);
  s.pairs = pad_to(s.bytes_end, kAlignment);
  s.pairs_end = s.pairs + (words ? 0 : (elements + 3) / 4);
  s.bits = pad_to(s.pairs_end, kAlignment);
  s.bits_end = s.bits + (words ? 0 : (elements + 7) / 8);
  s.counts = pad_to(s.bits_end, kAlignment);
  s.counts_end = s.counts + chunk_count(elements);
  s.table = pad_to(s.counts_end, 2);
  s.table_end = s.table + 2 * table_words;
  s.end = pad_to(s.table_end, kAlignment);
  return s;
}

// Words of the escape table that a chunk of so many values takes, by its count.
constexpr std::size_t table_words_of(std::uint8_t count, std::size_t chunk_elements) {
  return count == kRawChunk ? (chunk_elements + 1) / 2 : count;
}

// The length of a raw body, and the most that a plane of so many bytes takes: at most 31 more.
constexpr std::size_t raw_body_bytes(std::size_t plane_bytes) {
  return sizeof(Prefix) + pad_to(plane_bytes, kRawAlignment);
}

struct Kernels;

}  // namespace splitzip

// What a body that an encoder has just written tells about the codebook in it.
struct WrittenCodebook {
  Codebook book;
  double escapes = 0;  // share of the values that are not in it
};

// Empty when the plane stayed raw. `body` is our own work: only its size is checked.
std::optional<WrittenCodebook> written_codebook(const PlaneShape& shape, ByteView body);

// What the kernels of a tier use, for people.
std::string_view splitzip_description(Isa isa);

// Planes of any type but kF32. A given codebook must be strictly ascending in its first 16 entries
// (FP8 E4M3: 8), all below 2 to the power of the type's exponent bits.
class SplitZipCodec final : public Codec {
 public:
  // On kernels of that tier, which this processor must support.
  explicit SplitZipCodec(Isa isa);

  std::string_view name() const override { return "splitzip"; }
  std::size_t bound(const PlaneShape& shape) const override {
    return splitzip::raw_body_bytes(shape.bytes());
  }
  using Codec::decode;
  using Codec::encode;
  std::size_t encode(const PlaneShape& shape, const PlaneView& plane, const Codebook* book,
                     std::span<std::byte> destination) const override;
  // Also kUnsupported, for a body version of the future.
  Status decode(const PlaneShape& shape, ByteView coded, const PlaneSpan& plane) const override;

 private:
  const splitzip::Kernels& kernels_;
};

}  // namespace kvlane
