// Of the encoder of codec/splitzip_device.h: what a thread has of four whole bf16 chunks.
//
// It loads 64 bytes and stores 32 of rests, then 16 of codes. A span has 2 KB of values and costs a
// warp some 370 instructions, of which 210 make codes and rests and 90 find where escapes go.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_encode_chunks.h"

namespace kvlane::splitzip {

namespace device {

// Exponents and rests of four places, one a byte: two values that follow each other in the first
// half of their 64, and the two beside them in the second.
struct PackedParts {
  std::uint32_t exponents, rests;
};
KVLANE_DEVICE PackedParts split_words(std::uint32_t even, std::uint32_t odd) {
  const std::uint32_t low = byte_perm(even, odd, 0x6240);
  const std::uint32_t high = byte_perm(even, odd, 0x7351);
  return {(high << 1 & 0xFEFEFEFE) | (low >> 7 & 0x01010101),
          (low << 1 & 0xFEFEFEFE) | (high >> 7 & 0x01010101)};
}

// What a thread has of a span: 32 values of a group, 16 of each half of it. Rests are stored at
// once, in the order of places; codes are kept in few words until the warp knows which chunks are
// raw.
struct Bf16Part {
  static constexpr ElementType kType = ElementType::kBf16;
  Words4 codes;           // nibbles of both halves
  std::uint32_t escaped;  // bit 16 half + i: place 64 half + 16 column + i of the group

  // Of the group that begins with value `first`. By the whole warp; inactive threads have nothing,
  // and in the second pass nothing is stored.
  template <class Thread>
  KVLANE_DEVICE static Bf16Part load(Thread& t, const EncodePlan& plan, std::size_t first,
                                     bool active, bool second_pass) {
    Bf16Part part{};
    if (!active) return part;
    const std::uint32_t column = t.lane() % 4;
    const std::byte* const values = plan.plane + 2 * first + 16 * column;
    Words4 loaded[2][2];  // [half of the group][the first 32 values of it, or the others]
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int side = 0; side < 2; ++side) {
        loaded[half][side] = load_once(values + 128 * half + 64 * side);
      }
    }
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      Words4 out;
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const PackedParts parts = split_words(loaded[half][0].w[i], loaded[half][1].w[i]);
        std::uint32_t escapes;
        part.codes.w[i] |= codes_of(plan, parts.exponents, escapes) << 4 * half;
        part.escaped |= top_bits(escapes) << (16 * half + 4 * i);
        out.w[i] = parts.rests;
      }
      if (!second_pass) {
        store_once(plan.body + plan.at.bytes + first + 16 * column + 64 * half, out);
      }
    }
    return part;
  }

  KVLANE_DEVICE static void store(const EncodePlan& plan, std::size_t first, std::uint32_t column,
                                  const Words4& codes) {
    store_once(plan.body + plan.at.nibbles + first / 2 + 16 * column, codes);
  }
};

}  // namespace device

}  // namespace kvlane::splitzip
