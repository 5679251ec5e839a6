// The opponent of attention on codes (attention/hack_decode_device.h) on the matrix unit: codes
// become numbers in binary16 in registers, and these are multiplied. Bare `hack` at head_dim 128:
// 2 bits, K and V by both axes. Units, pages, queries, partial states and merge are those of
// attention on codes; pages are loaded to registers, with memory asked for a page ahead.
//
// Tokens and channels are rows, query heads columns, 16 products a sum; which token is which row,
// and where weights become operands, is as in attention/hack_decode_device.h. What takes time is to
// make operands of codes. Two codes lie in the halves of a word: one instruction cuts them out and
// puts the exponent of 1024 over them, and a fused multiply-add in binary16 leaves c - h, exactly.
// A word makes eight such pairs and is turned once for them, so no pair needs a shift: which codes
// are pairs is in pair_of().
//
// Two forms. Whole: a second fused multiply-add makes the value s (c - h) + m, as a kernel must
// whose metadata do not part; then sums are all there is to do. Split: K = s (c - h) + m is s of a
// row and m of a column, so s meets the score and m the query, once a page, and s of V the weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_decode_device.h"

namespace kvlane {

enum class DequantiseForm { kWhole, kSplit };

inline constexpr int kDequantiseDim = 128;

struct DequantiseShared {
  HackDecodeShared<kDequantiseDim, std::byte> states;
  // y of channels 64 i + 16 column ... as pairs for pair_of(): of registers 2 j, + 1.
  gpu::Words4 queries[2][2][gpu::kWarpThreads];
  // Split: y of channels 32 i + 8 column ..., as they come.
  gpu::Words4 for_means[4][gpu::kWarpThreads];
  float scales[kDecodeColumns];  // of scores; 0 without a head
};

namespace dequantise {

using namespace gpu;
using decode::Place;
using hack_decode::kHalves;
using hack_decode::kSpan;

inline constexpr int kDim = kDequantiseDim;
inline constexpr hack::Plane kPlane{2, hack::Axis::kBoth, 0, hack::Meta::kFp16};
inline constexpr hack::PageLayout kLayout = hack::page_layout(kPlane, kPlane, {kDim, kDim});
using State = hack_decode::WarpState<kDim>;

// In units of y; no score is below, and its distance from any is a number.
inline constexpr float kNoScore = -0x1p126F;

// (word & mask) | over, in one instruction.
KVLANE_DEVICE std::uint32_t cut(std::uint32_t word, std::uint32_t mask, std::uint32_t over) {
#ifdef __CUDA_ARCH__
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(over));
  return result;
#else
  return (word & mask) | over;
#endif
}
// The word's bits from `by` on, then those before them.
KVLANE_DEVICE std::uint32_t turned(std::uint32_t word, int by) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(word, word, by);
#else
  return word >> by | word << (32 - by);
#endif
}

// Number i of a word's two, twice.
KVLANE_DEVICE std::uint32_t both_of(std::uint32_t pair, int i) {
#ifdef __CUDA_ARCH__
  // Operands of arithmetic in pairs take either half twice, which ptxas sees behind moves.
  std::uint32_t result;
  if (i == 0) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(result) : "r"(pair));
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(result) : "r"(pair));
  }
  return result;
#else
  return byte_perm(pair, pair, i == 0 ? 0x1010 : 0x3232);
#endif
}
// Of words (0, 1), (2, 3): what pair_of(..., r, n) has in its halves when these are of bytes 0
// to 3.
KVLANE_DEVICE std::uint32_t pair_like(std::uint32_t first, std::uint32_t second, int r, int n) {
  if (n == 1) return byte_perm(first, second, 0x7632);
  return byte_perm(first, second, r == 0 ? 0x1054 : 0x5410);
}

// c - h of two codes of register r of a word: of bytes 0 and 2 (of register 0: 2 and 0) where n is
// 0, of 1 and 3 where it is 1. A number in binary16 has 10 bits below 1024, here of four codes but
// the lowest: there 1024 + h would be none. `word8` is the word turned by 8.
KVLANE_DEVICE std::uint32_t pair_of(std::uint32_t word, std::uint32_t word8, int r, int n) {
  const int at = r == 0 ? 4 : r;  // in codes, from the lowest
  const std::uint32_t from = (r == 0) == (n == 1) ? word : word8;
  const std::uint32_t to_one = (15 - 2 * at) << 10;  // 4^-at
  const std::uint32_t offset =
      0x8000 | (25 - 2 * at) << 10 | 3 << (2 * at - 1);  // of 4^-at 1024 + h
  return fused_fp16(cut(from, 0x00030003U << 2 * at, 0x64006400U), to_one * 0x10001U,
                    offset * 0x10001U);
}

// By all threads of the block: y of queries in binary16; columns without a head are 0.
template <DequantiseForm kForm, class Thread>
KVLANE_DEVICE void share_queries(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                                 DequantiseShared& shared) {
  const std::size_t first = hack_decode::first_row(batch, unit);
  // Channels `channel` ... + 7 of a query.
  const auto load = [&](int query, int channel, std::uint32_t(&y)[4]) {
    const std::size_t at = (first + query) * kDim + channel;
    const bool there = query < unit.queries;
    const Words4 rests = decode::load_if(there, batch.queries.rests, 2 * at);
    Words2 codes{};
    if (there) codes = load_pair(batch.queries.codes + at);
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t u = hack_decode::pair_of_codes(codes.w[i / 2], i % 2 * 2);
      y[i] = pack_fp16(low_fp16(u) + low_fp16(rests.w[i]), high_fp16(u) + high_fp16(rests.w[i]));
    }
  };
  for (int i = t.index(); i < 4 * kWarpThreads; i += t.threads()) {
    const int lane = i % kWarpThreads, span = i / kWarpThreads / 2, half = i / kWarpThreads % 2;
    std::uint32_t y[4];
    load(lane / 4, kSpan * span + lane % 4 * 16 + 8 * half, y);
    Words4 pairs;
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) {
      pairs.w[j] = pair_like(y[j / 2 * 2], y[j / 2 * 2 + 1], 2 * half + j / 2, j % 2);
    }
    shared.queries[span][half][lane] = pairs;
    if constexpr (kForm == DequantiseForm::kSplit) {
      load(lane / 4, 32 * (i / kWarpThreads) + lane % 4 * 8, y);
      shared.for_means[i / kWarpThreads][lane] = {{y[0], y[1], y[2], y[3]}};
    }
  }
  if (t.index() >= kDecodeColumns) return;
  const bool there = t.index() < unit.queries;
  shared.scales[t.index()] = there ? batch.queries.scales[first + t.index()] : 0;
}

// Of a page, for split: sums of y m, of this lane's heads, whose `column` is in `means`. Words of m
// are operands as they come: with a pair of y's words two of them are right, in rows that one
// accumulator keeps.
template <class Thread>
KVLANE_DEVICE void add_means(Thread& t, const std::byte* means, const DequantiseShared& shared,
                             float (&base)[2]) {
  float even[4] = {}, odd[4] = {};
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Words4 m = load_once(means + 64 * i);
    const Words4& y = shared.for_means[i][t.lane()];
    t.mma_fp16(even, m.w, y.w[0], y.w[2]);
    t.mma_fp16(odd, m.w, y.w[1], y.w[3]);
  }
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) base[n] = even[n] + odd[n + 2];
}

// Scores in units of y.
template <DequantiseForm kForm, class Thread>
KVLANE_DEVICE void score(Thread& t, const std::byte* page, Place place,
                         const DequantiseShared& shared, hack_decode::Scores& scores) {
  constexpr bool kWhole = kForm == DequantiseForm::kWhole;
  // Offsets that are constants stay apart from those of lanes, which are few then.
  const std::byte* const codes = page + unsigned(4 * kBlockTokens * place.column + 16 * place.row);
  const std::byte* const by_row = page + unsigned(8 * place.row);
  const std::byte* const means = page + unsigned((kWhole ? 32 : 16) * place.column);
  Words4 keys[kDim / kSpan][kHalves];
  Words2 scales[kHalves];  // of tokens 32 h + 4 row ... + 3
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    KVLANE_UNROLL
    for (int span = 0; span < kDim / kSpan; ++span) {
      keys[span][h] = load_once(codes + (kSpan / 16 * 4 * kBlockTokens * span + 128 * h));
    }
    scales[h] = load_pair(by_row + (kLayout.k_metadata + hack::scales_offset(kDim) + 64 * h));
  }
  KVLANE_UNROLL
  for (int i = 0; i < 16; ++i) scores.of[i / 8][i / 4 % 2][i % 4] = 0;
  float base[2] = {};
  if (!kWhole) add_means(t, means + kLayout.k_metadata, shared, base);
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) {
    std::uint32_t q[8], m[8];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Words4& pairs = shared.queries[span][half][t.lane()];
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) q[4 * half + i] = pairs.w[i];
      if (!kWhole) continue;
      const Words4 of = load_once(means + (kLayout.k_metadata + 2 * kSpan * span + 16 * half));
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        m[4 * half + i] = pair_like(of.w[i / 2 * 2], of.w[i / 2 * 2 + 1], 2 * half + i / 2, i % 2);
      }
    }
    KVLANE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      KVLANE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t(&words)[4] = keys[span][h].w;
        const std::uint32_t word[2] = {words[2 * e], words[2 * e + 1]};
        const std::uint32_t word8[2] = {turned(word[0], 8), turned(word[1], 8)};
        KVLANE_UNROLL
        for (int r = 0; r < 4; ++r) {
          std::uint32_t a[4];
          KVLANE_UNROLL
          for (int i = 0; i < 4; ++i) {
            a[i] = pair_of(word[i % 2], word8[i % 2], r, i / 2);
            if (kWhole) a[i] = fused_fp16(a[i], both_of(scales[h].w[e], i % 2), m[2 * r + i / 2]);
          }
          t.mma_fp16(scores.of[h][e], a, q[2 * r], q[2 * r + 1]);
        }
      }
    }
  }
  if constexpr (!kWhole) {
    KVLANE_UNROLL
    for (int i = 0; i < 16; ++i) {
      float& x = scores.of[i / 8][i / 4 % 2][i % 4];
      x = fused(hack_decode::number_of(scales[i / 8], i / 2 % 4), x, base[i % 2]);
    }
  }
}

// A page's weights as operands: of register r, pairs n.
struct Weights {
  std::uint32_t of[4][2];
};

// Scores become weights, and the state moves to the new maximum, which is in units of y.
template <class Thread>
KVLANE_DEVICE void weigh(Thread& t, Place place, const DequantiseShared& shared,
                         hack_decode::Scores& scores, State& state, Weights& weights) {
  float keep[2];
  bool moved = false;
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    float max = state.max[n];
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) max = larger(max, scores.of[i / 4][i / 2 % 2][i % 2 * 2 + n]);
    KVLANE_UNROLL
    for (int by = 4; by < kWarpThreads; by *= 2) {
      max = larger(max, float_of(t.shuffle(bits_of(max), t.lane() ^ by)));
    }
    moved = moved || max != state.max[n];
    const float scale = shared.scales[2 * place.column + n];
    keep[n] = power_of_two((state.max[n] - max) * scale);
    state.max[n] = max;
    const float offset = -max * scale;
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float& x = scores.of[i / 4][i / 2 % 2][i % 2 * 2 + n];
      x = power_of_two(fused(x, scale, offset));
    }
  }
  KVLANE_UNROLL
  for (int r = 0; r < 4; ++r) {
    const float(&x)[4] = scores.of[r / 2][r % 2];
    weights.of[r][0] = t.transposed(pack_fp16(x[0], x[1]));
    weights.of[r][1] = t.transposed(pack_fp16(x[2], x[3]));
  }
  weights.of[0][0] = byte_perm(weights.of[0][0], 0, 0x1032);
  // Seldom, after the first pages.
  if (t.ballot(moved) == 0) return;
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) state.sum[n] *= keep[n];
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) state.out[q][i / 4][i % 4] *= keep[i % 2];
  }
}

inline constexpr std::uint32_t kOnes = 0x3C003C00;  // a pair of 1

// What of a page's V lanes have in registers: of channels 32 q + 4 row ... + 3.
struct Values {
  Words4 codes[kDim / 32];
  Words2 means[kDim / 32];
  Words4 scales[kHalves];  // of the tokens 32 h + 8 column ... + 7
};
KVLANE_DEVICE void load_values(const std::byte* page, Place place, Values& values) {
  const std::byte* const codes = page + unsigned(4 * kDim * place.column + 16 * place.row);
  const std::byte* const by_row = page + unsigned(8 * place.row);
  const std::byte* const by_column = page + unsigned(16 * place.column);
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    values.codes[q] = load_once(codes + (kLayout.v_codes + 128 * q));
    values.means[q] = load_pair(by_row + (kLayout.v_metadata + 64 * q));
  }
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    values.scales[h] =
        load_once(by_column + (kLayout.v_metadata + hack::scales_offset(kDim) + 64 * h));
  }
}

// The state's sum is of weights as they are in binary16.
template <DequantiseForm kForm, class Thread>
KVLANE_DEVICE void add_values(Thread& t, const Values& values, Weights& weights, State& state) {
  constexpr bool kWhole = kForm == DequantiseForm::kWhole;
  std::uint32_t scales[4][2];
  KVLANE_UNROLL
  for (int r = 0; r < 4; ++r) {
    const Words4& s = values.scales[r / 2];
    KVLANE_UNROLL
    for (int n = 0; n < 2; ++n) scales[r][n] = pair_like(s.w[r % 2], s.w[r % 2 + 2], r, n);
  }
  float total[4] = {};
  std::uint32_t sums[2] = {weights.of[0][0], weights.of[0][1]};  // split: of weights
  if (kWhole) {
    KVLANE_UNROLL
    for (int r = 0; r < 4; ++r) {
      t.mma_fp16(total, {kOnes, kOnes, kOnes, kOnes}, weights.of[r][0], weights.of[r][1]);
    }
  } else {
    KVLANE_UNROLL
    for (int n = 0; n < 2; ++n) {
      KVLANE_UNROLL
      for (int r = 1; r < 4; ++r) sums[n] = add_fp16(sums[n], weights.of[r][n]);
      KVLANE_UNROLL
      for (int r = 0; r < 4; ++r) weights.of[r][n] = times_fp16(weights.of[r][n], scales[r][n]);
    }
    t.mma_fp16(total, {kOnes, kOnes, kOnes, kOnes}, sums[0], sums[1]);
  }
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) state.sum[n] += total[n];
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t(&words)[4] = values.codes[q].w;
      const std::uint32_t word[2] = {words[2 * e], words[2 * e + 1]};
      const std::uint32_t word8[2] = {turned(word[0], 8), turned(word[1], 8)};
      const std::uint32_t means = values.means[q].w[e];
      float(&out)[4] = state.out[q][e];
      KVLANE_UNROLL
      for (int r = 0; r < 4; ++r) {
        std::uint32_t a[4];
        KVLANE_UNROLL
        for (int i = 0; i < 4; ++i) {
          a[i] = pair_of(word[i % 2], word8[i % 2], r, i / 2);
          if (kWhole) a[i] = fused_fp16(a[i], scales[r][i / 2], both_of(means, i % 2));
        }
        t.mma_fp16(out, a, weights.of[r][0], weights.of[r][1]);
      }
      if (kWhole) continue;
      const std::uint32_t m[2] = {both_of(means, 0), both_of(means, 1)};
      t.mma_fp16(out, {m[0], m[1], m[0], m[1]}, sums[0], sums[1]);
    }
  }
}

// This warp's pages, one after the other: begin(page), and when memory has been asked for the next
// one, end(page).
template <class Thread, class Begin, class End>
KVLANE_DEVICE void for_pages(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                             const Begin& begin, const End& end) {
  const int behind = unit.end_token / kBlockTokens;
  int page = unit.first_token / kBlockTokens + t.warp();
  if (page >= behind) return;
  const std::int32_t* const ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
  const std::byte* const pages = batch.slabs + unit.kv_head * kLayout.bytes;
  std::int32_t id = ids[page];
  std::int32_t next = page + kDecodeWarps < behind ? ids[page + kDecodeWarps] : 0;
  KVLANE_NO_UNROLL
  for (; page < behind; page += kDecodeWarps) {
    const std::byte* const at = pages + id * batch.block_bytes;
    begin(at);
    id = next;
    if (page + 2 * kDecodeWarps < behind) next = ids[page + 2 * kDecodeWarps];
    if (page + kDecodeWarps < behind) {
      fetch_bytes_ahead(t, pages + id * batch.block_bytes, unsigned(kLayout.bytes));
    }
    end(at);
  }
}

template <DequantiseForm kForm, class Thread>
KVLANE_DEVICE void attend_pages(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                                Place place, const DequantiseShared& shared, State& state) {
  hack_decode::Scores scores;
  Values values;
  const auto begin = [&](const std::byte* page) {
    score<kForm>(t, page, place, shared, scores);
    load_values(page, place, values);
  };
  const auto end = [&](const std::byte*) {
    Weights weights;
    weigh(t, place, shared, scores, state, weights);
    add_values<kForm>(t, values, weights, state);
  };
  for_pages(t, batch, unit, begin, end);
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) state.max[n] *= shared.scales[2 * place.column + n];
}

}  // namespace dequantise

// By all threads of a block of kDecodeWarps warps, for pages of bare `hack` at kDequantiseDim.
template <DequantiseForm kForm, class Thread>
KVLANE_DEVICE void attend_dequantised(Thread& t, const HackDecodeBatch& batch,
                                      const DecodeUnit& unit, DequantiseShared& shared) {
  using namespace dequantise;
  const Place place{t.lane() / 4, t.lane() % 4};
  State state;
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    state.max[n] = kNoScore;
    state.sum[n] = 0;
  }
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) state.out[q][i / 4][i % 4] = 0;
  }
  t.wait_previous();
  share_queries<kForm>(t, batch, unit, shared);
  t.sync_block();
  attend_pages<kForm>(t, batch, unit, place, shared, state);
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    if (state.sum[n] == 0) state.max[n] = minus_infinity();
  }
  hack_decode::share_state<false, 2>(t, place, state, shared.states);
  hack_decode::store_states<2>(t, batch, unit, shared.states);
}

}  // namespace kvlane
