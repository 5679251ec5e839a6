// Pages of codes in kernels (spec/hack.md): what lanes load of them, as operands of the matrix
// unit, and scores. Formulas: attention/hack_page.h; which item is which row:
// attention/hack_decode_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/decode_device.h"
#include "attention/hack_prepare_device.h"
#include "quant/hack_layout.h"

namespace kvlane {

namespace hack_decode {

using namespace gpu;
using decode::Place;

inline constexpr int kHalves = kBlockTokens / 32;  // h
inline constexpr int kSpan = 64;                   // channels of K that lanes load together

// Codes as they come from memory; kDim is head_dim rounded up to 64, 128 or 256. Words of token
// (channel) 4 row + i of each half (each 32) are w[i].
template <int kDim, int kBits>
struct Keys {
  Words4 of[kDim / kSpan][kHalves][kBits / 2];
};
template <int kBits>
struct Values {
  Words4 of[kBits / 2];
};

// Of this lane's heads 2 column, + 1.
struct Heads {
  float scale[2], centre[2];
};

// A warp's scores, then weights: tile (h, e).
struct Scores {
  float of[kHalves][2][4];
};

// Register r of words: four codes as bytes.
template <int kBits>
KVLANE_DEVICE std::uint32_t register_of(const Words4 (&words)[kBits / 2], int item, int r) {
  constexpr int kRegisters = 8 / kBits;  // of a word
  constexpr std::uint32_t kMask = ((1U << kBits) - 1) * 0x01010101U;
  return words[r / kRegisters].w[item] >> kBits * (r % kRegisters) & kMask;
}

// Four codes of queries as pairs of binary16.
KVLANE_DEVICE std::uint32_t pair_of_codes(std::uint32_t codes, int first) {
  // 1024 + 128 + code: the byte above 128 is the low one of a number from 1024 on.
  const std::uint32_t numbers = byte_perm(codes ^ 0x80808080, 0x64, first == 0 ? 0x4140 : 0x4342);
  return add_fp16(numbers, 0xE480E480);
}

// Operand A for registers 2 step, + 1 of the items 2 e, + 1.
template <int kBits>
KVLANE_DEVICE void operand_of(const Words4 (&words)[kBits / 2], int e, int step,
                              std::uint32_t (&a)[4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = register_of<kBits>(words, 2 * e + i % 2, 2 * step + i / 2);
}

// What is beyond head_dim is 0.
template <int kDim, int kBits>
KVLANE_DEVICE void load_keys(const std::byte* page, int head_dim, Place place,
                             Keys<kDim, kBits>& keys) {
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) {
    const int channel = kSpan * span + 16 * place.column;
    KVLANE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      KVLANE_UNROLL
      for (int i = 0; i < kBits / 2; ++i) {
        const unsigned word = kBlockTokens * (channel / 16 * (kBits / 2) + i) + 32 * h;
        keys.of[span][h][i] = decode::load_if(channel < head_dim, page, 4 * (word + 4 * place.row));
      }
    }
  }
}

// The same of channels 32 q ... of V.
template <int kBits>
KVLANE_DEVICE void load_values(const std::byte* codes, int head_dim, int q, Place place,
                               Values<kBits>& values) {
  const int channel = 32 * q + 4 * place.row;
  KVLANE_UNROLL
  for (int i = 0; i < kBits / 2; ++i) {
    const unsigned word = (hack::kValueClasses * i + place.column) * head_dim + channel;
    values.of[i] = decode::load_if(channel < head_dim, codes, 4 * word);
  }
}

// Number i of four in binary16.
KVLANE_DEVICE float number_of(const Words2& numbers, int i) {
  return i % 2 == 0 ? low_fp16(numbers.w[i / 2]) : high_fp16(numbers.w[i / 2]);
}

// By both, codes of odd registers stay where they are in their bytes, beside those of the register
// before, whose shift serves them too: so many times too large. Sums of the others are multiplied
// before odd ones come in. A power of two, so nothing is rounded.
template <int kBits>
inline constexpr int kTimes = 1 << kBits;

// Operand A by both: of the items 2 e, + 1 the even registers, or the odd ones as they are.
template <int kBits>
KVLANE_DEVICE void operand_in_place(const Words4 (&words)[kBits / 2], int e, int odd,
                                    std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = ((1U << kBits) - 1) * 0x01010101U;
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int item = 2 * e + i % 2, pair = i / 2;  // of registers
    const std::uint32_t word =
        kBits == 2 ? words[0].w[item] >> 4 * pair : words[pair % (kBits / 2)].w[item];
    a[i] = word & kMask << kBits * odd;
  }
}

// Where sums of integers begin, and the float that has these bits: what is added is in the float
// then, and nothing has to be converted. Sums stay within 2^22 of it.
inline constexpr std::int32_t kSumBits = 0x4B400000;
inline constexpr float kSumFloat = 0x1.8p23F;
static_assert(16 * 15 * 127 * 128 < 1 << 22 && 16 * 15 * 255 * kBlockTokens < 1 << 22);
// Of sums of even registers: where those of odd ones go on, for columns of the lane's heads.
template <int kHeads, int kBits>
KVLANE_DEVICE void go_on_with_odd(std::int32_t (&sums)[4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i % 2 < kHeads) sums[i] = sums[i] * kTimes<kBits> + kSumBits;
  }
}
KVLANE_DEVICE float sum_with(std::int32_t sum, float other) {
  return float_of(static_cast<std::uint32_t>(sum)) + other;
}

// Scores by both axes, kTimes too large and in units of a query's scale. So are `centre`, what the
// codes' middle has of them, less kSumFloat, and `base`, what means of channels have. `queries` are
// registers 0, 2, 1 and 3 of each span.
template <int kHeads, int kDim, int kBits, class Thread>
KVLANE_DEVICE void score_by_both(Thread& t, const Keys<kDim, kBits>& keys,
                                 const Words4 (&queries)[kDim / kSpan], const float (&centre)[2],
                                 const float (&base)[2], const Words2 (&scales)[kHalves],
                                 Scores& scores) {
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    KVLANE_UNROLL
    for (int e = 0; e < 2; ++e) {
      std::int32_t dot[4] = {};
      KVLANE_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        if (odd == 1) go_on_with_odd<kHeads, kBits>(dot);
        KVLANE_UNROLL
        for (int span = 0; span < kDim / kSpan; ++span) {
          std::uint32_t a[4];
          operand_in_place<kBits>(keys.of[span][h], e, odd, a);
          t.mma_u8s8(dot, a, queries[span].w[2 * odd], queries[span].w[2 * odd + 1]);
        }
      }
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i % 2 >= kHeads) continue;
        const float product = sum_with(dot[i], centre[i % 2]);
        scores.of[h][e][i] = fused(number_of(scales[h], 2 * e + i / 2), product, base[i % 2]);
      }
    }
  }
}

// One partition's part of the scores of tile (h, e).
KVLANE_DEVICE void add_partition(const std::int32_t (&dot)[4], const Words4& metadata, int e,
                                 const HackTerm (&terms)[2], float (&score)[4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t entry = metadata.w[2 * e + i / 2];
    const HackTerm& term = terms[i % 2];
    score[i] += low_fp16(entry) * term.sum;
    score[i] += high_fp16(entry) * (static_cast<float>(dot[i]) + term.centre);
  }
}

// Scores by token, in units of log2. A lane's registers are channels of one partition; with
// partitions of 32 half of the lanes have the first of a span and half the second, and each sum
// leaves the others out.
template <int kDim, int kBits, int kPartition, class Thread>
KVLANE_DEVICE void score_by_token(Thread& t, const std::byte* metadata, int head_dim,
                                  const Keys<kDim, kBits>& keys,
                                  const Words4 (&queries)[kDim / kSpan], const Heads& heads,
                                  const HackTerm (&query_terms)[kDecodeColumns][kHackTerms],
                                  Place place, Scores& scores) {
  constexpr int kSums = kPartition < kSpan ? kSpan / kPartition : 1;        // of a span
  constexpr int kSpans = kPartition > kSpan ? kPartition / kSpan : 1;       // of a sum
  constexpr int kTogether = kSpans < kDim / kSpan ? kSpans : kDim / kSpan;  // that there are
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) scores.of[h][i / 4][i % 4] = 0;
    KVLANE_UNROLL
    for (int first = 0; first < kDim / kSpan; first += kTogether) {
      KVLANE_UNROLL
      for (int part = 0; part < kSums; ++part) {
        const int partition = first / kTogether * kSums + part;
        const Words4 entries = decode::load_if(
            partition * kPartition < head_dim, metadata,
            unsigned(hack::kEntryBytes * (kBlockTokens * partition + 32 * h + 4 * place.row)));
        const HackTerm terms[2] = {query_terms[2 * place.column][partition],
                                   query_terms[2 * place.column + 1][partition]};
        const bool own = kSums == 1 || place.column / 2 == part;
        KVLANE_UNROLL
        for (int e = 0; e < 2; ++e) {
          std::int32_t dot[4] = {};
          KVLANE_UNROLL
          for (int step = 2 * first; step < 2 * (first + kTogether); ++step) {
            const Words4& u = queries[step / 2];
            const int word = step % 2 * 2;
            std::uint32_t a[4];
            operand_of<kBits>(keys.of[step / 2][h], e, step % 2, a);
            t.mma_u8s8(dot, a, own ? u.w[word] : 0, own ? u.w[word + 1] : 0);
          }
          add_partition(dot, entries, e, terms, scores.of[h][e]);
        }
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) scores.of[h][i / 4][i % 4] *= heads.scale[i % 2];
  }
}

}  // namespace hack_decode
}  // namespace kvlane
