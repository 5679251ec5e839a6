// SplitZip for kernels: one block of threads encodes or decodes one plane, in one pass over it.
//
// As a block owns a plane, the order of the escape table needs no other block: encoding, warps take
// runs of chunks, keep their escapes in shared memory, and after one barrier know where these go;
// decoding, they take spans in turn (codec/splitzip_device_decode_tiles.h). A warp takes four whole
// chunks at a time, or to decode FP8 eight; a thread has four values in a word. A chunk that is cut
// short, and those of planes with other addresses, go a place at a time. Bytes and verdicts are
// those of splitzip_scalar.cpp (spec/splitzip.md).
//
// A bf16 plane costs 3.5 bytes of memory traffic a value, plus escapes and tables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip.h"
#include "gpu/device_code.h"

namespace kvlane::splitzip {

// Of a block of threads, at most.
inline constexpr int kDeviceWarps = 16;

namespace device {

using namespace gpu;

inline constexpr std::uint32_t kChunk = kChunkElements;
inline constexpr std::uint32_t kGroup = kGroupElements;
inline constexpr std::uint32_t kSpanChunks = 4;  // what an encoding warp takes at a time

// Of the span that begins with this chunk, where whole chunks end with `end`.
KVLANE_DEVICE std::uint32_t span_values(std::uint32_t chunk, std::uint32_t end) {
  const std::uint32_t left = chunk < end ? end - chunk : 0;
  return (left < kSpanChunks ? left : kSpanChunks) * kChunk;
}

struct Parts {
  unsigned exponent, rest;
};

template <ElementType kType>
KVLANE_DEVICE Parts parts_of(const std::byte* value) {
  constexpr Fields kFields = fields_of(kType);
  constexpr int kBits = kFields.exponent_bits + kFields.rest_bits;
  unsigned x = load_byte(value);
  if constexpr (kBits == 16) x |= load_byte(value + 1) << 8;
  const unsigned rotated = (x << 1 | x >> (kBits - 1)) & ((1U << kBits) - 1);
  return {rotated >> kFields.rest_bits, rotated & ((1U << kFields.rest_bits) - 1)};
}

template <ElementType kType>
KVLANE_DEVICE void store_value(std::byte* at, Parts parts) {
  constexpr Fields kFields = fields_of(kType);
  constexpr int kBits = kFields.exponent_bits + kFields.rest_bits;
  const unsigned rotated = parts.exponent << kFields.rest_bits | parts.rest;
  const unsigned x = rotated >> 1 | rotated << (kBits - 1);
  store_byte(at, x);
  if constexpr (kBits == 16) store_byte(at + 1, x >> 8);
}

// Where in its chunk of `length` values the one with this place is.
template <ElementType kType>
KVLANE_DEVICE std::uint32_t value_at(std::uint32_t place, std::uint32_t length) {
  if (kType != ElementType::kBf16 || (place | (kGroup - 1)) >= length) return place;
  return (place & ~63U) | (place & 1U) << 5 | (place & 63U) >> 1;
}

KVLANE_DEVICE std::uint32_t group_length(std::uint32_t group, std::uint32_t length) {
  return length - group < kGroup ? length - group : kGroup;
}

// How far apart the fields of one byte are.
KVLANE_DEVICE std::uint32_t field_step(std::uint32_t length, std::uint32_t width) {
  return (length * width + 7) / 8;
}

// The fields of one byte of a group of `length` places, from field(place).
template <class Field>
KVLANE_DEVICE unsigned packed_byte(std::uint32_t at, std::uint32_t length, std::uint32_t width,
                                   const Field& field) {
  const std::uint32_t step = field_step(length, width);
  unsigned byte = 0;
  for (std::uint32_t place = at, shift = 0; place < length; place += step, shift += width) {
    byte |= (field(place) & ((1U << width) - 1)) << shift;
  }
  return byte;
}
template <class Field>
KVLANE_DEVICE unsigned packed_bits(std::uint32_t at, std::uint32_t length, const Field& field) {
  unsigned byte = 0;
  for (std::uint32_t bit = 0; bit < 8 && 8 * at + bit < length; ++bit) {
    byte |= (field(8 * at + bit) >> 2 & 1U) << bit;
  }
  return byte;
}

KVLANE_DEVICE unsigned unpacked(const std::byte* group, std::uint32_t place, std::uint32_t length,
                                std::uint32_t width) {
  const std::uint32_t step = field_step(length, width);
  return load_byte(group + place % step) >> place / step * width & ((1U << width) - 1);
}

// Offsets in a body, of which kernels keep few and narrow ones: registers are what they lack.
struct Offsets {
  std::uint32_t nibbles, bytes, pairs, bits, counts, table;
};
KVLANE_DEVICE Offsets offsets(const Sections& at) {
  return {static_cast<std::uint32_t>(at.nibbles), static_cast<std::uint32_t>(at.bytes),
          static_cast<std::uint32_t>(at.pairs),   static_cast<std::uint32_t>(at.bits),
          static_cast<std::uint32_t>(at.counts),  static_cast<std::uint32_t>(at.table)};
}

// Where the fields of the chunk that begins with value `first` are.
template <class Byte>
struct ChunkStreams {
  Byte* nibbles;
  Byte* bytes;
  Byte* pairs;
  Byte* bits;
};
template <class Byte>
KVLANE_DEVICE ChunkStreams<Byte> chunk_streams(Byte* body, const Offsets& at, std::uint32_t first) {
  return {body + at.nibbles + first / 2, body + at.bytes + first, body + at.pairs + first / 4,
          body + at.bits + first / 8};
}

}  // namespace device

}  // namespace kvlane::splitzip
