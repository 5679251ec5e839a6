// Of the encoder of codec/splitzip_device.h: what a thread has of four whole FP8 chunks.
//
// It loads 32 bytes and stores 16 of nibbles, 8 of pairs and 4 of bits. A span has 1 KB of values
// and costs a warp some 380 instructions, of which 190 make fields and 90 find where escapes go.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_encode_chunks.h"

namespace kvlane::splitzip {

namespace device {

// Codes of four FP8 exponents, as codes_of().
template <ElementType kType>
KVLANE_DEVICE std::uint32_t fp8_codes_of(const EncodePlan& plan, std::uint32_t exponents,
                                         std::uint32_t& escapes) {
  if (!plan.is_window) return codes_of(plan, exponents, escapes);
  // Exponents have five bits at most, so nothing is borrowed from bit 7, which is 0 then where the
  // difference is not negative; and a bit above those of codes tells that it is too large.
  constexpr int kCodeBits = fields_of(kType).code_bits;
  const std::uint32_t distance = ((exponents | 0x80808080) - plan.window) ^ 0x80808080;
  escapes = (distance | distance << (7 - kCodeBits)) & 0x80808080;
  return distance & ~byte_perm(escapes, 0, 0xBA98);
}

// Of FP8, as Bf16Part. Of a byte of a group's pairs, two threads whose columns are two apart have
// two fields each: each stores half of their bytes, and gives the other one the rest. Bits of two
// threads that follow each other are a word of either half.
template <ElementType kFp8>
struct Fp8Part {
  static constexpr ElementType kType = kFp8;
  static constexpr bool kCodesAreNibbles = kType == ElementType::kFp8E5m2;
  static constexpr int kRestBits = fields_of(kType).rest_bits;
  static constexpr std::uint32_t kEach = 0x01010101;
  Words4 codes;           // nibbles of both halves, or what the thread stores of pairs and bits
  std::uint32_t escaped;  // as above

  template <class Thread>
  KVLANE_DEVICE static Fp8Part load(Thread& t, const EncodePlan& plan, std::size_t first,
                                    bool active, bool second_pass) {
    const std::uint32_t column = t.lane() % 4;
    Words4 loaded[2] = {};
    if (active) {
      const std::byte* const values = plan.plane + first + 16 * column;
      loaded[0] = load_once(values);
      loaded[1] = load_once(values + 64);
    }
    Words4 nibbles{}, pairs{};
    std::uint32_t bits = 0, escaped = 0;
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t x = loaded[half].w[i];
        const std::uint32_t exponents =
            x >> (kRestBits - 1) & kEach * ((1U << fields_of(kType).exponent_bits) - 1);
        const std::uint32_t rests = (x << 1 & kEach * ((1U << kRestBits) - 2)) | (x >> 7 & kEach);
        std::uint32_t escapes;
        const std::uint32_t codes = fp8_codes_of<kType>(plan, exponents, escapes);
        const std::uint32_t triples = kCodesAreNibbles ? rests : codes;
        nibbles.w[i] |= (kCodesAreNibbles ? codes : rests) << 4 * half;
        pairs.w[i] |= (triples & 3 * kEach) << 4 * half;
        bits |= top_bits(triples << 5) << (16 * half + 4 * i);
        escaped |= top_bits(escapes) << (16 * half + 4 * i);
      }
    }
    const Words4 triples = shared_out(t, pairs, bits);
    if (active && !second_pass) {
      kCodesAreNibbles ? store_triples(plan, first, column, triples)
                       : store_nibbles(plan, first, column, nibbles);
    }
    return {kCodesAreNibbles ? nibbles : triples, active ? escaped : 0};
  }

  KVLANE_DEVICE static void store(const EncodePlan& plan, std::size_t first, std::uint32_t column,
                                  const Words4& codes) {
    kCodesAreNibbles ? store_nibbles(plan, first, column, codes)
                     : store_triples(plan, first, column, codes);
  }

 private:
  // Two words of pairs and one of bits, from fields of the thread's own values: pairs of both
  // halves in bits 0-1 and 4-5 of bytes, bits as `escaped`.
  template <class Thread>
  KVLANE_DEVICE static Words4 shared_out(Thread& t, const Words4& pairs, std::uint32_t bits) {
    const bool upper = t.lane() % 4 >= 2, odd = t.lane() % 2 != 0;
    Words4 out{};
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t kept = upper ? pairs.w[2 + i] : pairs.w[i];
      const std::uint32_t other = t.shuffle(upper ? pairs.w[i] : pairs.w[2 + i], t.lane() ^ 2);
      out.w[i] = upper ? kept << 2 | other : kept | other << 2;
    }
    const std::uint32_t other = t.shuffle(bits, t.lane() ^ 1);
    out.w[2] = odd ? byte_perm(other, bits, 0x7632) : byte_perm(bits, other, 0x5410);
    return out;
  }

  KVLANE_DEVICE static void store_nibbles(const EncodePlan& plan, std::size_t first,
                                          std::uint32_t column, const Words4& nibbles) {
    store_once(plan.body + plan.at.nibbles + first / 2 + 16 * column, nibbles);
  }
  KVLANE_DEVICE static void store_triples(const EncodePlan& plan, std::size_t first,
                                          std::uint32_t column, const Words4& triples) {
    store_pair(plan.body + plan.at.pairs + first / 4 + column % 2 * 16 + column / 2 * 8,
               triples.w[0], triples.w[1]);
    store_aligned_word(plan.body + plan.at.bits + first / 8 + column % 2 * 8 + column / 2 * 4,
                       triples.w[2]);
  }
};

}  // namespace device

}  // namespace kvlane::splitzip
