// Of the decoder of codec/splitzip_device.h: four whole bf16 chunks, from their fields in shared
// memory to values in the same place.
//
// A thread takes 16 bytes of codes and 32 of rests: 32 values of a group, 16 of each half of it, as
// eight words of four places each. That is some 20 instructions for four values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_decode_chunks.h"

namespace kvlane::splitzip {

namespace device {

// Four places back to two values of the first half of their 64 and the two beside them.
KVLANE_DEVICE void join_words(std::uint32_t exponents, std::uint32_t rests, std::uint32_t& even,
                              std::uint32_t& odd) {
  const std::uint32_t low = (exponents << 7 & 0x80808080) | (rests >> 1 & 0x7F7F7F7F);
  const std::uint32_t high = (exponents >> 1 & 0x7F7F7F7F) | (rests << 7 & 0x80808080);
  even = byte_perm(low, high, 0x6240);
  odd = byte_perm(low, high, 0x7351);
}

// What a codec of tiles must know of a type (codec/splitzip_device_decode_tiles.h).
struct Bf16Span {
  static constexpr ElementType kType = ElementType::kBf16;
  static constexpr std::uint32_t kChunks = 4;  // of a span
  static constexpr std::uint32_t kRing = 3;    // spans that a warp has room for

  // Nibbles, then bytes: 32 and 64 words of 16 bytes. What lies behind `values` is not read.
  template <class Thread>
  KVLANE_DEVICE static void load(Thread& t, const DecodePlan& plan, std::size_t first,
                                 std::uint32_t values, Words4* to) {
    const std::uint32_t lane = t.lane();
    const std::byte* const nibbles = plan.body + plan.at.nibbles + first / 2 + 16 * lane;
    const std::byte* const rests = plan.body + plan.at.bytes + first + 16 * lane;
    t.copy_async(to[lane], nibbles, 32 * lane < values);
    t.copy_async(to[32 + lane], rests, 16 * lane < values);
    t.copy_async(to[64 + lane], rests + 512, 16 * lane + 512 < values);
  }

  // What join() is given of the codebook.
  KVLANE_DEVICE static Words4 book(const Words4& exponents) { return exponents; }

  struct Part {
    Words4 nibbles;  // of both halves
    Words4 rests[2];
  };
  KVLANE_DEVICE static Part part(const Words4* span, std::uint32_t lane) {
    const Words4* const rests = span + 32 + lane / 4 * 8 + lane % 4;
    return {span[lane], {rests[0], rests[4]}};
  }

  // The values of a half, without the exponents that are in the table: 8 of its first 32, and of
  // those behind.
  KVLANE_DEVICE static void join_half(const Words4& book, const Part& part, int half,
                                      Words4 (&out)[2]) {
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t codes = gathered_nibbles(part.nibbles.w[i] >> 4 * half & 0x0F0F0F0F);
      join_words(exponents_of(book, codes), part.rests[half].w[i], out[0].w[i], out[1].w[i]);
    }
  }

  // Values come to where `swizzled` says (codec/splitzip_device_decode_tiles.h).
  KVLANE_DEVICE static void join(const Words4& book, const Part& part, Words4* span,
                                 std::uint32_t lane) {
    const std::uint32_t at = lane / 4 * 16 + lane % 4, odd = lane / 4 % 2 * 4;
    Words4* const sides[] = {span + at + odd, span + at + 4 - odd};
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      Words4 out[2];
      join_half(book, part, half, out);
      sides[0][8 * half] = out[0];
      sides[1][8 * half] = out[1];
    }
  }

  // Gives a value another exponent.
  KVLANE_DEVICE static void patch(std::byte* value, unsigned exponent) {
    store_aligned_half(value, (load_aligned_half(value) & 0x807F) | exponent << 7);
  }
};

}  // namespace device

}  // namespace kvlane::splitzip
