// Prefill attention on codes in kernels: scores of a page, weights in 8 bits, and how these meet V.
// Formulas: attention/hack_page.h; which item is which row: attention/hack_prefill_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_pages_device.h"
#include "attention/hack_weights_device.h"

namespace kvlane::hack_prefill {

using hack_decode::kLeastWeight;
using hack_decode::kMostWeight;
using hack_decode::kRound;
using prefill::Scores;

inline constexpr int kTokenTiles = kBlockTokens / 8;
// Parts of 8 channels of V that are multiplied together: as many as leave registers enough.
inline constexpr int kTogether = 4;
// Where sums of integers begin, and the float that has these bits. They stay within 2^22 of it.
inline constexpr std::int32_t kBegin = 0x4B400000;
static_assert(127 * 15 * hack::kHeadDimMax < 1 << 22 && 255 * 15 * kBlockTokens < 1 << 22);
KVLANE_DEVICE float sum_of(std::int32_t d) {
  return float_of(static_cast<std::uint32_t>(d)) - kRound;
}

// A warp's outputs, as prefill::WarpState has them.
template <int kDim, int kTiles>
struct Outputs {
  float of[kTiles][kDim / 8][4];
};

// A page's weights: operands for the tokens 0 ... 31 and 32 ... 63, and what they are worth.
template <int kTiles>
struct Weights {
  std::uint32_t codes[kTiles][2][4];
  float unit[kTiles][2];   // half of a code's
  float total[kTiles][2];  // of all weights: by both
};

// By both: the scales of the tokens 32 h + 8 column ... + 7.
KVLANE_DEVICE void load_scales(const Page& page, unsigned metadata, unsigned column,
                               Words4 (&scales)[2]) {
  const unsigned first = metadata + static_cast<unsigned>(hack::scales_offset(page.head_dim));
  KVLANE_UNROLL
  for (int h = 0; h < 2; ++h) scales[h] = page.words[(first + 64 * h) / sizeof(Words4) + column];
}

// The scores by both, in units of half a query's scale.
template <int kTiles>
KVLANE_DEVICE void take_by_both(const std::int32_t (&dot)[kTiles][kTokenTiles][4],
                                const Words4 (&scales)[2], Scores<kTiles>& scores) {
  KVLANE_UNROLL
  for (int part = 0; part < kTokenTiles; ++part) {
    const std::uint32_t pair = scales[part / 4].w[part % 4];
    const float s[2] = {low_fp16(pair), high_fp16(pair)};
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        // s times the sum, rounded once: s kRound is exact.
        const float sum = float_of(static_cast<std::uint32_t>(dot[tile][part][i]));
        scores.of[tile][part][i] = fused(s[i % 2], sum, -(s[i % 2] * kRound));
      }
    }
  }
}

// Of a partition: 2 m + top s, which meets sums over it, and s.
struct Affine {
  float level, s;
};
KVLANE_DEVICE Affine affine_of(std::uint32_t entry, float top) {
  const float s = high_fp16(entry);
  return {fused(s, top, 2 * low_fp16(entry)), s};
}

// One partition's part of the scores of two tiles of tokens.
template <int kTiles>
KVLANE_DEVICE void add_partition(const std::int32_t (&dot)[kTiles][2][4], const Words4& entries,
                                 float top, const float (&sums)[kTiles][2], int first,
                                 Scores<kTiles>& scores) {
  KVLANE_UNROLL
  for (int j = 0; j < 4; ++j) {
    const Affine affine = affine_of(entries.w[j], top);
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      KVLANE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float& score = scores.of[tile][first + j / 2][2 * half + j % 2];
        const float sum = float_of(static_cast<std::uint32_t>(dot[tile][j / 2][2 * half + j % 2]));
        score += fused(affine.s, sum, -(affine.s * kRound));
        score = fused(affine.level, sums[tile][half], score);
      }
    }
  }
}

// Adds products over 32 channels each, those of `steps` from `step` on, for kCount tiles of tokens
// from `first` on.
template <int kCount, class Thread, int kDim, int kTiles>
KVLANE_DEVICE void multiply(Thread& t, const HackPrefillShared<kDim, kTiles>& shared, unsigned lane,
                            int step, int steps, int first,
                            std::int32_t (&dot)[kTiles][kCount][4]) {
  constexpr int kPieces = HackPrefillShared<kDim, kTiles>::kPieces;
  const Words4* const keys = shared.codes.keys[0];
  const Words4* const own = shared.queries[t.warp() * kTiles * kPrefillRows];
  const unsigned down = prefill::place_down<kPieces>(lane);
  // Of the tiles o = 0, 1 of token 0: in others o is exclusive-ored to the piece, as place_of_key()
  // has it.
  const unsigned row = lane % 8, next = lane / 16;
  const unsigned along =
      (8 * (row / 2) + row % 2 + 2 * next) * kPieces + (lane / 8 % 2 ^ row ^ 2 * next);
  KVLANE_UNROLL
  for (int i = step; i < step + steps; ++i) {
    std::uint32_t q[kTiles][4];
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      t.load_matrices(own[tile * kPrefillRows * kPieces + prefill::move_right(down, i)], q[tile]);
    }
    KVLANE_UNROLL
    for (int part = 0; part < kCount; part += 2) {
      const int h = (first + part) / 4, o = (first + part) % 4;
      std::uint32_t k[4];
      t.load_matrices(keys[(32 * h + 2 * o) * kPieces + prefill::move_right(along, i ^ o)], k);
      KVLANE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        t.mma_s8s8(dot[tile][part], q[tile], k[0], k[1]);
        t.mma_s8s8(dot[tile][part + 1], q[tile], k[2], k[3]);
      }
    }
  }
}
template <int kCount, int kTiles>
KVLANE_DEVICE void begin_sums(std::int32_t (&dot)[kTiles][kCount][4]) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int i = 0; i < 4 * kCount; ++i) dot[tile][i / 4][i % 4] = kBegin;
  }
}

// The warp's scores in units of half a query's scale, without what is common to a page.
template <int kPartition, class Thread, int kDim, int kTiles>
KVLANE_DEVICE void score(Thread& t, const HackPrefillShared<kDim, kTiles>& shared, const Page& page,
                         float top, Scores<kTiles>& scores) {
  const unsigned lane = prefill::lane_anew(t);
  const unsigned column = lane % 4;
  if constexpr (kPartition == 0) {
    std::int32_t dot[kTiles][kTokenTiles][4];
    begin_sums(dot);
    multiply(t, shared, lane, 0, kDim / 32, 0, dot);
    Words4 scales[2];
    load_scales(page, page.k_metadata, column, scales);
    take_by_both(dot, scales, scores);
  } else {
    constexpr int kWidth = kPartition < kDim ? kPartition : kDim;
    KVLANE_UNROLL
    for (int first = 0; first < kTokenTiles; first += 2) {
      KVLANE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        KVLANE_UNROLL
        for (int i = 0; i < 8; ++i) scores.of[tile][first + i / 4][i % 4] = 0;
      }
      KVLANE_UNROLL
      for (int sum = 0; sum < kDim / kWidth; ++sum) {
        if (sum * kWidth >= page.head_dim) continue;
        std::int32_t dot[kTiles][2][4];
        begin_sums(dot);
        multiply(t, shared, lane, sum * (kWidth / 32), kWidth / 32, first, dot);
        float sums[kTiles][2];
        KVLANE_UNROLL
        for (int i = 0; i < 2 * kTiles; ++i) {
          sums[i / 2][i % 2] = shared.common[pair_of<kTiles>(t, i / 2, i % 2)][sum];
        }
        // Of the tokens 32 h + 8 column + 2 o ... + 3.
        const unsigned entry = kBlockTokens * sum + first / 4 * 32 + first % 4 * 2;
        const Words4 entries =
            page.words[(page.k_metadata + hack::kEntryBytes * entry) / 16 + 2 * column];
        add_partition(dot, entries, top, sums, first, scores);
      }
    }
  }
}

// Of what the lanes of this row have.
template <class Thread>
KVLANE_DEVICE float sum_of_columns(Thread& t, float x) {
  return sum_of_lanes(t, x, 4);
}

// A row of scores becomes weights, not yet in codes. Gives the maximum of the page, without what is
// common to it, in units of log2.
template <class Thread>
KVLANE_DEVICE float weigh_row(Thread& t, float scale, int half, float (&of)[kTokenTiles][4]) {
  float seen = of[0][2 * half];
  KVLANE_UNROLL
  for (int i = 1; i < 2 * kTokenTiles; ++i) seen = larger(seen, of[i / 2][2 * half + i % 2]);
  const float max = prefill::max_of_columns(t, seen) * scale;
  KVLANE_UNROLL
  for (int i = 0; i < 2 * kTokenTiles; ++i) {
    float& x = of[i / 2][2 * half + i % 2];
    x = power_of_two(fused(x, scale, -max));
  }
  return max;
}

// Weights by both: V's scales come in. Gives the sum of weights, and in `most` the largest with its
// scale.
template <class Thread>
KVLANE_DEVICE float scale_row(Thread& t, const Words4 (&scales)[2], int half, float& most,
                              float (&of)[kTokenTiles][4]) {
  float sum = 0;
  most = kLeastWeight;
  KVLANE_UNROLL
  for (int part = 0; part < kTokenTiles; ++part) {
    const std::uint32_t pair = scales[part / 4].w[part % 4];
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float& x = of[part][2 * half + i];
      sum += x;
      x *= i == 0 ? low_fp16(pair) : high_fp16(pair);
      most = larger(most, x);
    }
  }
  most = prefill::max_of_columns(t, most);
  return sum_of_columns(t, sum);
}

// A row's weights as codes: those of register r of the operands.
KVLANE_DEVICE std::uint32_t code_row(const float (&of)[kTokenTiles][4], int half, int r,
                                     float inverse) {
  const float(&a)[4] = of[r / 2 * 4 + r % 2], (&b)[4] = of[r / 2 * 4 + 2 + r % 2];
  const auto code = [&](float x) { return bits_of(fused(x, inverse, kRound)); };
  const std::uint32_t low = byte_perm(code(a[2 * half]), code(a[2 * half + 1]), 0x0040);
  const std::uint32_t high = byte_perm(code(b[2 * half]), code(b[2 * half + 1]), 0x0040);
  return byte_perm(low, high, 0x5410);
}

// Scores become weights in 8 bits, and states move to the new maximum. `scales` are of V's tokens:
// by both.
template <bool kBoth, class Thread, int kDim, int kTiles>
KVLANE_DEVICE void weigh(Thread& t, int page, int first_page, const Words4 (&scales)[2],
                         HackPrefillShared<kDim, kTiles>& shared, Scores<kTiles>& scores,
                         Outputs<kDim, kTiles>& out, Weights<kTiles>& weights) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    float keep[2], max[2];
    bool moved = false;
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int pair = pair_of<kTiles>(t, tile, half);
      const bool visible = page < shared.end[pair];
      float page_max = weigh_row(t, shared.scales[pair], half, scores.of[tile]);
      if (kBoth) page_max += shared.common[pair][(page - first_page) % kPagesTogether];
      const float old = shared.max[pair];
      max[half] = visible ? larger(old, page_max) : old;
      moved = moved || max[half] != old;
      keep[half] = power_of_two(old - max[half]);
      const float of_page = visible ? power_of_two(page_max - max[half]) : 0;
      float inverse = kMostWeight;
      weights.unit[tile][half] = of_page * (0.5F / kMostWeight);
      weights.total[tile][half] = 0;
      if (kBoth) {
        float most;
        weights.total[tile][half] = scale_row(t, scales, half, most, scores.of[tile]) * of_page;
        inverse *= about_one_over(most);
        weights.unit[tile][half] *= most;
      }
      KVLANE_UNROLL
      for (int r = 0; r < 4; ++r) {
        weights.codes[tile][r / 2][r % 2 * 2 + half] = code_row(scores.of[tile], half, r, inverse);
      }
    }
    const bool any_moved = t.ballot(moved) != 0;
    t.sync_warp();  // all lanes of a row have read what the first one writes
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int pair = pair_of<kTiles>(t, tile, half);
      if (t.lane() % 4 != 0) continue;
      shared.max[pair] = max[half];
      shared.sum[pair] = shared.sum[pair] * keep[half] + weights.total[tile][half];
    }
    // Seldom, after the first pages.
    if (!any_moved) continue;
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 2; ++i) out.of[tile][i / 4][i % 4] *= keep[i % 4 / 2];
  }
}

template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void add_values_by_both(Thread& t, const HackPrefillShared<kDim, kTiles>& shared,
                                      const Page& page, const Weights<kTiles>& weights,
                                      Outputs<kDim, kTiles>& out) {
  const unsigned lane = prefill::lane_anew(t);
  const Words4* const values = shared.codes.values[0] + place_of_value(lane % 8, lane / 8);
  KVLANE_UNROLL
  for (int part = 0; part < kDim / 8; ++part) {
    if (part % kTogether == 0 && 8 * part >= page.head_dim) break;
    const unsigned channel = 8 * part + lane % 4 * 2;
    const std::uint32_t means = page.word(page.v_metadata + 2 * channel);
    const float m[2] = {low_fp16(means), high_fp16(means)};
    std::uint32_t v[4];
    t.load_matrices(values[8 * part * hack::kValueRegisters], v);
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      std::int32_t dot[4] = {kBegin, kBegin, kBegin, kBegin};
      t.mma_u8s8(dot, weights.codes[tile][0], v[0], v[1]);
      t.mma_u8s8(dot, weights.codes[tile][1], v[2], v[3]);
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& sum = out.of[tile][part][i];
        sum += m[i % 2] * weights.total[tile][i / 2];
        sum += weights.unit[tile][i / 2] * sum_of(dot[i]);
      }
    }
  }
}

// By channel. The tokens of one operand are 0 ... 31, those of the other 32 ... 63.
template <int kPartition, class Thread, int kDim, int kTiles>
KVLANE_DEVICE void add_values_by_channel(Thread& t, const Page& page, float top,
                                         const Weights<kTiles>& weights,
                                         HackPrefillShared<kDim, kTiles>& shared,
                                         Outputs<kDim, kTiles>& out) {
  constexpr int kSums = kPartition == 32 ? 2 : 1, kSteps = 2 / kSums;
  constexpr std::uint32_t kOnes = 0x01010101;
  const unsigned lane = prefill::lane_anew(t);
  const Words4* const values = shared.codes.values[0] + place_of_value(lane % 8, lane / 8);
  float totals[kTiles][kSums][2];
  KVLANE_UNROLL
  for (int i = 0; i < kTiles * kSums; ++i) {
    const int tile = i / kSums, sum = i % kSums;
    std::int32_t count[4] = {kBegin, kBegin, kBegin, kBegin};
    KVLANE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      t.mma_u8u8(count, weights.codes[tile][sum * kSteps + step], kOnes, kOnes);
    }
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      totals[tile][sum][half] = sum_of(count[2 * half]) * weights.unit[tile][half];
      if (lane % 4 == 0) {
        shared.sum[pair_of<kTiles>(t, tile, half)] += 2 * totals[tile][sum][half];
      }
    }
  }
  KVLANE_UNROLL
  for (int part = 0; part < kDim / 8; ++part) {
    if (part % kTogether == 0 && 8 * part >= page.head_dim) break;
    const unsigned channel = 8 * part + lane % 4 * 2;
    std::uint32_t v[4];
    t.load_matrices(values[8 * part * hack::kValueRegisters], v);
    KVLANE_UNROLL
    for (int sum = 0; sum < kSums; ++sum) {
      const unsigned at = page.v_metadata + 4 * (sum * page.head_dim + channel);
      const Affine affine[2] = {affine_of(page.word(at), top), affine_of(page.word(at + 4), top)};
      KVLANE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        std::int32_t dot[4] = {kBegin, kBegin, kBegin, kBegin};
        KVLANE_UNROLL
        for (int step = sum * kSteps; step < (sum + 1) * kSteps; ++step) {
          t.mma_u8s8(dot, weights.codes[tile][step], v[2 * step], v[2 * step + 1]);
        }
        KVLANE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& value = out.of[tile][part][i];
          value += affine[i % 2].level * totals[tile][sum][i / 2];
          value += weights.unit[tile][i / 2] * (affine[i % 2].s * sum_of(dot[i]));
        }
      }
    }
  }
}

}  // namespace kvlane::hack_prefill
