// Of the decoder of codec/splitzip_device.h: eight whole FP8 chunks, from their fields in shared
// memory to values in the same place.
//
// Half a span is 1024 values, as those of bf16 are, and taken likewise: a thread has 32 values of a
// group, 16 of each half of it. For these it takes 16 bytes of nibbles, 16 of pairs, which it
// shares with the thread beside it, and twice 2 of bits. Four values are some 14 instructions of
// E4M3, 20 of E5M2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_decode_chunks.h"

namespace kvlane::splitzip {

namespace device {

// Four bits, lowest first, to bit 2 of four bytes (kTo 2) or bit 1 (kTo 1).
template <int kTo>
KVLANE_DEVICE std::uint32_t spread_bits(std::uint32_t bits) {
  return bits * (0x00204081U << kTo) & 0x01010101U << kTo;
}

// As Bf16Span.
template <ElementType kFp8>
struct Fp8Span {
  static constexpr ElementType kType = kFp8;
  static constexpr std::uint32_t kChunks = 8;
  static constexpr std::uint32_t kRing = 3;
  static constexpr int kExponentShift = fields_of(kType).rest_bits - 1;
  static constexpr std::uint32_t kExponentMask = (1U << fields_of(kType).exponent_bits) - 1;
  // Of a span, in words of 16 bytes: nibbles, then pairs, then bits.
  static constexpr std::uint32_t kPairs = 64, kBits = 96;

  template <class Thread>
  KVLANE_DEVICE static void load(Thread& t, const DecodePlan& plan, std::size_t first,
                                 std::uint32_t values, Words4* to) {
    const std::uint32_t lane = t.lane();
    const std::byte* const nibbles = plan.body + plan.at.nibbles + first / 2 + 16 * lane;
    t.copy_async(to[lane], nibbles, 32 * lane < values);
    t.copy_async(to[32 + lane], nibbles + 512, 32 * lane + 1024 < values);
    t.copy_async(to[kPairs + lane], plan.body + plan.at.pairs + first / 4 + 16 * lane,
                 64 * lane < values);
    if (lane < 16) {
      t.copy_async(to[kBits + lane], plan.body + plan.at.bits + first / 8 + 16 * lane,
                   128 * lane < values);
    }
  }

  // Exponents where values have them.
  KVLANE_DEVICE static Words4 book(const Words4& exponents) {
    Words4 moved;
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      moved.w[i] = (exponents.w[i] & kExponentMask * 0x01010101U) << kExponentShift;
    }
    return moved;
  }

  struct Part {
    struct Half {
      Words4 nibbles;  // of both halves of the group
      Words4 pairs;    // as moved down as the thread needs them for the first half
      std::uint32_t bits[2];
    } of[2];
  };
  KVLANE_DEVICE static Part part(const Words4* span, std::uint32_t lane) {
    const std::uint32_t column = lane % 4;
    Part part{};
    KVLANE_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      typename Part::Half& half = part.of[i];
      const std::uint32_t group = 8 * i + lane / 4;
      half.nibbles = span[32 * i + lane];
      half.pairs = span[kPairs + 2 * group + column % 2];
      const auto* const bits = reinterpret_cast<const std::byte*>(span + kBits + group);
      half.bits[0] = load_aligned_half(bits + 2 * column);
      half.bits[1] = load_aligned_half(bits + 8 + 2 * column);
      for (std::uint32_t& word : half.pairs.w) word >>= column / 2 * 2;
    }
    return part;
  }

  // Four values: nibbles and pairs are the lowest bits of bytes.
  KVLANE_DEVICE static std::uint32_t join_word(const Words4& book, std::uint32_t nibbles,
                                               std::uint32_t pairs, std::uint32_t bits) {
    if constexpr (kType == ElementType::kFp8E4m3) {
      const std::uint32_t codes = (pairs & 0x03030303) | spread_bits<2>(bits);
      return byte_perm(book.w[0], book.w[1], gathered_nibbles(codes)) |
             (nibbles >> 1 & 0x07070707) | (nibbles << 7 & 0x80808080);
    } else {
      return exponents_of(book, gathered_nibbles(nibbles & 0x0F0F0F0F)) |
             (pairs >> 1 & 0x01010101) | spread_bits<1>(bits) | (pairs << 7 & 0x80808080);
    }
  }

  KVLANE_DEVICE static void join(const Words4& book, const Part& part, Words4* span,
                                 std::uint32_t lane) {
    const std::uint32_t at = lane / 4 * 8 + lane % 4, odd = lane / 4 % 2 * 4;
    KVLANE_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      const typename Part::Half& from = part.of[i];
      Words4* const to = span + 64 * i + at;
      KVLANE_UNROLL
      for (int half = 0; half < 2; ++half) {
        Words4 out;
        KVLANE_UNROLL
        for (int k = 0; k < 4; ++k) {
          out.w[k] = join_word(book, from.nibbles.w[k] >> 4 * half, from.pairs.w[k] >> 4 * half,
                               from.bits[half] >> 4 * k & 0xF);
        }
        to[half == 0 ? odd : 4 - odd] = out;
      }
    }
  }

  KVLANE_DEVICE static void patch(std::byte* value, unsigned exponent) {
    store_byte(value, (load_byte(value) & ~(kExponentMask << kExponentShift)) |
                          exponent << kExponentShift);
  }
};

}  // namespace device

}  // namespace kvlane::splitzip
