// Of the decoder of codec/splitzip_device.h: a chunk at a time, of any type, length and address.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device.h"

namespace kvlane::splitzip {

namespace device {

struct DecodePlan {
  const std::byte* body;
  Offsets at;
  std::byte* plane;
  std::uint32_t elements;

  KVLANE_DEVICE std::uint32_t length(std::uint32_t chunk) const {
    const std::uint32_t left = elements - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
  KVLANE_DEVICE unsigned count(std::uint32_t chunk) const {
    return load_byte(body + at.counts + chunk);
  }
  KVLANE_DEVICE const std::byte* table(std::uint32_t word) const {
    return body + at.table + 2 * std::size_t{word};
  }
};

KVLANE_DEVICE bool possible_count(unsigned count) {
  return count <= kChunkEscapesMax || count == kRawChunk;
}

// Words of the table.
KVLANE_DEVICE std::uint32_t words_of(unsigned count, std::uint32_t length) {
  return static_cast<std::uint32_t>(table_words_of(static_cast<std::uint8_t>(count), length));
}

// The low nibbles of four bytes, as nibbles of 16 bits: a selector of bytes.
KVLANE_DEVICE std::uint32_t gathered_nibbles(std::uint32_t bytes) {
  return byte_perm(bytes | bytes >> 4, 0, 0x4420);
}

// The exponents of four codes, the low nibbles of a word. Nibbles are a selector of bytes; their
// top bits say from which half of the codebook.
KVLANE_DEVICE std::uint32_t exponents_of(const Words4& book, std::uint32_t codes) {
  const std::uint32_t selector = codes & 0x7777;
  const std::uint32_t upper = byte_perm(codes << 4, codes, 0xD9C8);
  return (byte_perm(book.w[2], book.w[3], selector) & upper) |
         (byte_perm(book.w[0], book.w[1], selector) & ~upper);
}

// Any chunk, by one warp, whose part of the table is at `table`. Whether it is as it must be.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool decode_any_chunk(Thread& t, const DecodePlan& plan, std::uint32_t chunk,
                                    const std::byte* table) {
  constexpr Fields kFields = fields_of(kType);
  const std::uint32_t first = chunk * kChunk;
  const std::uint32_t length = plan.length(chunk);
  const ChunkStreams<const std::byte> in = chunk_streams(plan.body, plan.at, first);
  const unsigned count = plan.count(chunk);
  std::byte* const values = plan.plane + std::size_t{first} * element_bytes(kType);
  const auto nibble = [&](std::uint32_t place) {
    const std::uint32_t group = place / kGroup * kGroup;
    return unpacked(in.nibbles + group / 2, place - group, group_length(group, length), 4);
  };
  const auto triple = [&](std::uint32_t place) {
    const std::uint32_t group = place / kGroup * kGroup;
    const unsigned pair =
        unpacked(in.pairs + group / 4, place - group, group_length(group, length), 2);
    return pair | (load_byte(in.bits + place / 8) >> place % 8 & 1U) << 2;
  };
  const auto rest = [&](std::uint32_t place) -> unsigned {
    if constexpr (kType == ElementType::kBf16) return load_byte(in.bytes + place);
    if constexpr (kType == ElementType::kFp8E4m3) return nibble(place);
    return triple(place);
  };
  const auto code = [&](std::uint32_t place) -> unsigned {
    return kType == ElementType::kFp8E4m3 ? triple(place) : nibble(place);
  };
  const auto put = [&](std::uint32_t place, unsigned exponent) {
    store_value<kType>(values + std::size_t{value_at<kType>(place, length)} * element_bytes(kType),
                       {exponent & ((1U << kFields.exponent_bits) - 1), rest(place)});
  };
  bool right = true;
  for (std::uint32_t place = t.lane(); place < length; place += kWarpThreads) {
    unsigned exponent = load_byte(plan.body + sizeof(Prefix) + code(place));
    if (count == kRawChunk) {
      exponent = load_byte(table + place);
      right = right && exponent >> kFields.exponent_bits == 0;
    }
    put(place, exponent);
  }
  if (count == kRawChunk) return right && (length % 2 == 0 || load_byte(table + length) == 0);
  t.sync_warp();  // the values under escapes are written
  for (std::uint32_t i = t.lane(); i < count; i += kWarpThreads) {
    const unsigned place = load_byte(table + 2 * i), exponent = load_byte(table + 2 * i + 1);
    right = right && place < length && exponent >> kFields.exponent_bits == 0 &&
            (i == 0 || load_byte(table + 2 * i - 2) < place);
    if (place < length) put(place, exponent);
  }
  return right;
}

// Chunks of a warp, whose part of the table begins with word `word`.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool decode_chunks(Thread& t, const DecodePlan& plan, std::uint32_t begin,
                                 std::uint32_t end, std::uint32_t word) {
  bool right = true;
  KVLANE_NO_UNROLL
  for (std::uint32_t chunk = begin; chunk < end; ++chunk) {
    right = decode_any_chunk<kType>(t, plan, chunk, plan.table(word)) && right;
    word += words_of(plan.count(chunk), plan.length(chunk));
  }
  return right;
}

// Fields of the last, short group that no place has.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool unused_fields_zero(Thread& t, const DecodePlan& plan) {
  const std::uint32_t length = plan.elements % kGroup;
  const std::uint32_t group = plan.elements - length;
  const std::uint32_t place = length + t.index();
  const std::uint32_t half = field_step(length, 4), quarter = field_step(length, 2);
  bool zero = true;
  const auto field = [&](std::size_t at, std::uint32_t step, std::uint32_t width) {
    return load_byte(plan.body + at + place % step) >> place / step * width & ((1U << width) - 1);
  };
  if (place < 2 * half) zero = field(plan.at.nibbles + group / 2, half, 4) == 0;
  if constexpr (kType != ElementType::kBf16) {
    if (place < 4 * quarter) zero = zero && field(plan.at.pairs + group / 4, quarter, 2) == 0;
    if (place < (length + 7) / 8 * 8) {
      zero = zero &&
             (load_byte(plan.body + plan.at.bits + group / 8 + place / 8) >> place % 8 & 1) == 0;
    }
  }
  return zero;
}

}  // namespace device

}  // namespace kvlane::splitzip
