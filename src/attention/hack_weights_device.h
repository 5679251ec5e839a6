// Scores of a page of codes become weights in 8 bits, and these meet V, in kernels. Formulas:
// attention/hack_page.h; which item is which row: attention/hack_decode_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_scores_device.h"

namespace kvlane::hack_decode {

inline constexpr float kMostWeight = 255;  // in codes
// Less makes no difference beside a state's other pages, and is no divisor.
inline constexpr float kLeastWeight = 0x1p-100F;
// Adding it rounds to a whole number, in the low bits.
inline constexpr float kRound = 0x1.8p23F;

// kHeads of a lane: 2, or 1 where columns of odd numbers have none.

// A warp's: of its pages so far. Entries of max and sum are for the lane's heads.
template <int kDim>
struct WarpState {
  float max[2];
  float sum[2];  // by both, of this lane's tokens
  // By both: what weights are beside, a maximum of some page; a lane's `max` is of its own tokens.
  float about[2];
  // By both: the middle of codes times all weights, which every output has too much.
  float middle[2];
  float out[kDim / 32][2][4];
};

// A page's weights: operands, and what they are worth.
struct Weights {
  std::uint32_t codes[4];
  float unit[2];         // of a code
  std::uint32_t totals;  // of all weights, as an operand: by both
};

// The largest of what this lane has of a head; the other two of a tile's four are the other head's.
KVLANE_DEVICE float max_of_lane(const Scores& x, int head) {
  float max = x.of[0][0][head];
  KVLANE_UNROLL
  for (int i = 1; i < 8; ++i) max = larger(max, x.of[i / 4][i / 2 % 2][i % 2 * 2 + head]);
  return max;
}
template <class Thread>
KVLANE_DEVICE float max_of_page(Thread& t, const Scores& x, int head) {
  return decode::max_of_rows(t, max_of_lane(x, head));
}

// What is left of outputs so far.
struct Move {
  float keep[2];
  bool moved;
};

// Weights in 8 bits, which are the next operand.
template <int kHeads, class Thread>
KVLANE_DEVICE void code_weights(Thread& t, const Scores& weights, const float (&inverse)[2],
                                std::uint32_t (&codes)[4]) {
  KVLANE_UNROLL
  for (int tile = 0; tile < 4; ++tile) {
    const float(&x)[4] = weights.of[tile / 2][tile % 2];
    std::uint32_t pairs[2];
    KVLANE_UNROLL
    for (int n = 0; n < kHeads; ++n) {
      const std::uint32_t first = bits_of(fused(x[n], inverse[n], kRound));
      const std::uint32_t second = bits_of(fused(x[n + 2], inverse[n], kRound));
      pairs[n] = byte_perm(first, second, 0x0040);
    }
    codes[tile] = t.transposed(kHeads == 2 ? byte_perm(pairs[0], pairs[1], 0x5410) : pairs[0]);
  }
}

// Seldom, after the first pages.
template <int kHeads, int kDim, class Thread>
KVLANE_DEVICE void move_outputs(Thread& t, const Move& move, WarpState<kDim>& state) {
  if (t.ballot(move.moved) == 0) return;
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (i % 2 < kHeads) state.out[q][i / 4][i % 4] *= move.keep[i % 2];
    }
  }
}

// By channel: scores, in units of log2, become weights beside the page's maximum, and the state
// moves to its own.
template <int kDim, class Thread>
KVLANE_DEVICE void weigh_by_channel(Thread& t, Scores& scores, WarpState<kDim>& state,
                                    Weights& weights) {
  Move move{{}, false};
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const float page_max = max_of_page(t, scores, n);
    const float old = state.max[n];
    state.max[n] = larger(old, page_max);
    move.moved = move.moved || state.max[n] != old;
    move.keep[n] = power_of_two(old - state.max[n]);
    state.sum[n] *= move.keep[n];
    weights.unit[n] = power_of_two(page_max - state.max[n]) * (1 / kMostWeight);
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float& x = scores.of[i / 4][i / 2 % 2][i % 2 * 2 + n];
      x = power_of_two(x - page_max);
    }
  }
  code_weights<2>(t, scores, {kMostWeight, kMostWeight}, weights.codes);
  move_outputs<2>(t, move, state);
}

// By both a lane's maximum is of its own tokens, and what weights are beside moves to a page's only
// where that is so far above it, in log2: sums of weights stay within what 16 bits hold.
inline constexpr float kMoveAt = 8;

// Before weights are made of the page's scores, which are in units of `scale`, log2 of a weight:
// the maxima, and what weights are beside.
template <int kHeads, int kDim, class Thread>
KVLANE_DEVICE void see_scores(Thread& t, const float (&scale)[2], const Scores& scores,
                              WarpState<kDim>& state) {
  float seen[2];
  bool far = false;
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    seen[n] = max_of_lane(scores, n) * scale[n];
    state.max[n] = larger(state.max[n], seen[n]);
    far = far || seen[n] > state.about[n] + kMoveAt;
  }
  if (t.ballot(far) == 0) return;
  // Seldom, after the first pages.
  Move move{{1, 1}, true};
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    const float page_max = decode::max_of_rows(t, seen[n]);
    const float old = state.about[n];
    if (page_max > old + kMoveAt) state.about[n] = page_max;
    move.keep[n] = power_of_two(old - state.about[n]);
    state.sum[n] *= move.keep[n];
    state.middle[n] *= move.keep[n];
  }
  move_outputs<kHeads>(t, move, state);
}

// Sums of weights as an operand of 16 bits: of two rows of lanes each, rounded in the first four
// rows of the product, and what is left in the others.
template <int kHeads, class Thread>
KVLANE_DEVICE std::uint32_t operand_of_totals(Thread& t, const float (&total)[2]) {
  float both[2] = {};
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    both[n] = total[n] + float_of(t.shuffle(bits_of(total[n]), t.lane() ^ 16));
  }
  const std::uint32_t rounded = pack_fp16(both[0], both[1]);
  const std::uint32_t left = pack_fp16(both[0] - low_fp16(rounded), both[1] - high_fp16(rounded));
  return t.transposed(t.lane() < 16 ? rounded : left);
}

// By both: scores, in units of `scale`, become weights; the scales of V's tokens are in the codes.
template <int kHeads, int kDim, class Thread>
KVLANE_DEVICE void weigh_by_both(Thread& t, const float (&scale)[2],
                                 const Words2 (&scales)[kHalves], Scores& scores,
                                 WarpState<kDim>& state, Weights& weights) {
  see_scores<kHeads>(t, scale, scores, state);
  float inverse[2], total[2];
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    total[n] = 0;
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float& x = scores.of[i / 4][i / 2 % 2][i % 2 * 2 + n];
      x = power_of_two(fused(x, scale[n], -state.about[n]));
      total[n] += x;
      x *= number_of(scales[i / 4], i % 4);
    }
    state.sum[n] += total[n];
    const float most = larger(max_of_page(t, scores, n), kLeastWeight);
    inverse[n] = about_one_over(most) * kMostWeight;
    weights.unit[n] = (1 / kMostWeight) * most;
  }
  code_weights<kHeads>(t, scores, inverse, weights.codes);
  weights.totals = operand_of_totals<kHeads>(t, total);
}

// Sums of codes of weights, of the tokens of registers 2 step, + 1, of this lane's heads; added up.
template <class Thread>
KVLANE_DEVICE void count_weights(Thread& t, const Weights& weights, int step, float (&sum)[2]) {
  constexpr std::uint32_t kOnes = 0x01010101;
  std::int32_t d[4] = {};
  t.mma_u8u8(d, {kOnes, kOnes, kOnes, kOnes}, weights.codes[2 * step], weights.codes[2 * step + 1]);
  sum[0] += static_cast<float>(d[0]);
  sum[1] += static_cast<float>(d[1]);
}

// By both, for 32 channels of V. Means of channels times sums of weights are a product of the
// matrix unit, whose rows are channels; the middle of codes is left in.
template <int kHeads, int kBits, class Thread>
KVLANE_DEVICE void add_values_by_both(Thread& t, const Values<kBits>& values, const Words2& means,
                                      const Weights& weights, float (&out)[2][4]) {
  constexpr float kLess = 1.0F / kTimes<kBits>;
  KVLANE_UNROLL
  for (int e = 0; e < 2; ++e) {
    std::int32_t dot[4] = {};
    KVLANE_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      if (odd == 1) go_on_with_odd<kHeads, kBits>(dot);
      std::uint32_t a[4];
      operand_in_place<kBits>(values.of, e, odd, a);
      t.mma_u8u8(dot, a, weights.codes[odd], weights.codes[2 + odd]);
    }
    t.mma_fp16(out[e], {byte_perm(means.w[e], 0, 0x1010), byte_perm(means.w[e], 0, 0x3232)},
               weights.totals);
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i % 2 >= kHeads) continue;
      out[e][i] = fused(weights.unit[i % 2] * kLess, sum_with(dot[i], -kSumFloat), out[e][i]);
    }
  }
}
template <int kHeads, int kBits, int kDim, class Thread>
KVLANE_DEVICE void add_middle(Thread& t, const Weights& weights, WarpState<kDim>& state) {
  constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2;
  float count[2] = {};
  count_weights(t, weights, 0, count);
  count_weights(t, weights, 1, count);
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    state.middle[n] = fused(count[n], kMiddle * weights.unit[n], state.middle[n]);
  }
}

// By channel. The tokens of registers 0, 1 are 0 ... 31, those of 2, 3 the others.
template <int kDim, int kBits, int kPartition, class Thread>
KVLANE_DEVICE void add_values_by_channel(Thread& t, const std::byte* metadata, int head_dim,
                                         Place place, const Values<kBits> (&values)[kDim / 32],
                                         const Weights& weights, WarpState<kDim>& state) {
  constexpr int kParts = kPartition == 32 ? 2 : 1;
  KVLANE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    float total[2] = {};
    KVLANE_UNROLL
    for (int step = part; step < (kParts == 1 ? 2 : part + 1); ++step) {
      count_weights(t, weights, step, total);
    }
    KVLANE_UNROLL
    for (int n = 0; n < 2; ++n) {
      total[n] *= weights.unit[n];
      state.sum[n] += total[n];
    }
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      const int channel = 32 * q + 4 * place.row;
      const Words4 entries = decode::load_if(
          channel < head_dim, metadata, unsigned(hack::kEntryBytes * (part * head_dim + channel)));
      KVLANE_UNROLL
      for (int e = 0; e < 2; ++e) {
        std::int32_t dot[4] = {};
        KVLANE_UNROLL
        for (int step = part; step < (kParts == 1 ? 2 : part + 1); ++step) {
          std::uint32_t a[4];
          operand_of<kBits>(values[q].of, e, step, a);
          t.mma_u8u8(dot, a, weights.codes[2 * step], weights.codes[2 * step + 1]);
        }
        KVLANE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t entry = entries.w[2 * e + i / 2];
          float& out = state.out[q][e][i];
          out += high_fp16(entry) * weights.unit[i % 2] * static_cast<float>(dot[i]);
          out += low_fp16(entry) * total[i % 2];
        }
      }
    }
  }
}

}  // namespace kvlane::hack_decode
