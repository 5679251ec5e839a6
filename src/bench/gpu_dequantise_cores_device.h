// The opponent of attention on codes without a matrix unit: codes become floats in registers, and
// these are multiplied and added, one instruction a product. Pages, units, queries and states are
// those of bench/gpu_dequantise_device.h; values are split, as there.
//
// A value is made once for all query heads of the block, in two instructions: a page takes a lane
// 512 times (2 + heads) and little else. Lane (row, column) has of K the tokens 32 h + 4 row ... +
// 3 and channels 16 column ... + 15 of every 64: sums over the columns' lanes leave lane i the
// token 32 h + i. Its weights go to the others through shared memory; of V a lane has channels 32 q
// + 4 row ... + 3 and tokens of class `column`, and the four classes' outputs are added up at the
// end of a unit.
//
// A float has 23 bits below 1, in which a code is cut out where it lies: 1 + c 2^(bit - 23), less
// 1 + h 2^(bit - 23), is c - h, exactly, but for a power of two that queries and weights make good.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/gpu_dequantise_device.h"

namespace kvlane {

struct DequantiseCoresShared {
  struct alignas(8) Pair {
    float x[2];
  };

  HackDecodeShared<kDequantiseDim, std::byte> states;
  // y for codes of channels 64 i + 16 column + 4 r + 2 j, + 1 and queries 2 n, + 1: two of the
  // first, then two of the other, at [4 i + r][j][n][column].
  gpu::Floats4 queries[8][2][kDecodeColumns / 2][4];
  alignas(16) float for_means[kDecodeColumns][kDequantiseDim];   // y, by channels
  Pair weights[kDecodeWarps][kDecodeColumns][kBlockTokens / 2];  // of pages' tokens
  float scales[kDecodeColumns];                                  // of scores; 0 without a head
};

namespace dequantise_cores {

using namespace gpu;
using decode::Place;
using dequantise::kDim;
using dequantise::kLayout;
using hack_decode::kHalves;
using hack_decode::kSpan;
using hack_decode::number_of;

// Where a code is cut out: in a word, or in the word turned by 16, where 1 + h 2^(bit - 23) is a
// float.
KVLANE_DEVICE bool turns(int bit) { return bit < 2 || bit > 20; }
KVLANE_DEVICE int bit_in(int bit) { return turns(bit) ? (bit + 16) % 32 : bit; }
// The code that begins at `bit` of a word stands for (c - h) / unit_at(bit).
KVLANE_DEVICE float unit_at(int bit) {
  return float_of(static_cast<std::uint32_t>(127 + 23 - bit_in(bit)) << 23);
}
KVLANE_DEVICE float value_at(std::uint32_t word, std::uint32_t word16, int bit) {
  constexpr std::uint32_t kOne = 0x3F800000;
  const int at = bit_in(bit);
  const float x = float_of(dequantise::cut(turns(bit) ? word16 : word, 3U << at, kOne));
  return x - float_of(kOne | 3U << (at - 1));
}
KVLANE_DEVICE int bit_of_key(int r, int byte) { return 8 * byte + 2 * r; }
// Of number i of the tokens 32 h + 8 column + 4 u ... + 3.
KVLANE_DEVICE int bit_of_value(int h, int u, int i) {
  return 8 * (2 * u + i % 2) + 2 * (2 * h + i / 2);
}

// A warp's outputs, of this lane's tokens. Its maximum (in units of y) and sum are in shared
// memory: they are wanted once a page, and registers are scarce.
template <int kQueries>
struct Outputs {
  float of[kQueries][kDim / 32][4];
};

// By all threads of the block.
template <class Thread>
KVLANE_DEVICE void share_queries(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                                 DequantiseCoresShared& shared) {
  const std::size_t first = hack_decode::first_row(batch, unit);
  for (int i = t.index(); i < kDecodeColumns * kDim; i += t.threads()) {
    const int query = i / kDim, channel = i % kDim, r = channel / 4 % 4, byte = channel % 4;
    const std::size_t at = (first + query) * kDim + channel;
    float y = 0;
    if (query < unit.queries) {
      const auto u = static_cast<std::int8_t>(load_byte(batch.queries.codes + at));
      y = static_cast<float>(u) + low_fp16(load_aligned_half(batch.queries.rests + 2 * at));
    }
    Floats4& to = shared.queries[channel / kSpan * 4 + r][byte / 2][query / 2][channel / 16 % 4];
    to.x[query % 2 * 2 + byte % 2] = y * unit_at(bit_of_key(r, byte));
    shared.for_means[query][channel] = y;
  }
  if (t.index() >= kDecodeColumns) return;
  const bool there = t.index() < unit.queries;
  shared.scales[t.index()] = there ? batch.queries.scales[first + t.index()] : 0;
}

// Of four numbers the one that is this lane's by its column, summed over the four columns.
template <class Thread>
KVLANE_DEVICE float sum_of_columns(Thread& t, Place place, const float (&x)[4]) {
  const bool upper = place.column >= 2, odd = place.column % 2 != 0;
  float pair[2];
  KVLANE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float other = upper ? x[i] : x[i + 2];
    pair[i] = (upper ? x[i + 2] : x[i]) + float_of(t.shuffle(bits_of(other), t.lane() ^ 2));
  }
  const float other = odd ? pair[0] : pair[1];
  return (odd ? pair[1] : pair[0]) + float_of(t.shuffle(bits_of(other), t.lane() ^ 1));
}

// Adds up what channels 4 r ... + 3 of every 16 of a span (`part` is 4 spans + r) have of products
// with the tokens 32 h + 4 row ... + 3, of kTogether halves h from `first` on.
template <int kQueries, int kTogether, class Thread>
KVLANE_DEVICE void add_products(Thread& t, const Words4 (&keys)[kDim / kSpan][kHalves], int part,
                                int first, Place place, const DequantiseCoresShared& shared,
                                float (&dot)[kQueries][kTogether][4]) {
  // Or ptxas begins all parts at once, and has too few registers.
  if (kQueries > 1) t.sync_warp();
  KVLANE_UNROLL
  for (int j = 0; j < 2; ++j) {
    Floats4 y[(kQueries + 1) / 2];
    KVLANE_UNROLL
    for (int n = 0; n < (kQueries + 1) / 2; ++n) y[n] = shared.queries[part][j][n][place.column];
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int bit = bit_of_key(part % 4, 2 * j + i);
      KVLANE_UNROLL
      for (int token = 0; token < 4 * kTogether; ++token) {
        const std::uint32_t word = keys[part / 4][first + token / 4].w[token % 4];
        const float k = value_at(word, dequantise::turned(word, 16), bit);
        KVLANE_UNROLL
        for (int n = 0; n < kQueries; ++n) {
          float& sum = dot[n][token / 4][token % 4];
          sum = fused(k, y[n / 2].x[n % 2 * 2 + i], sum);
        }
      }
    }
  }
}

// Scores of the tokens 32 h + lane in units of y.
template <int kQueries, class Thread>
KVLANE_DEVICE void score(Thread& t, const std::byte* page, Place place,
                         const DequantiseCoresShared& shared, float (&scores)[kQueries][kHalves]) {
  // Halves whose sums, and whose codes, there are registers for.
  constexpr int kTogether = kQueries > 1 ? 1 : kHalves;
  constexpr int kLoaded = kQueries > 4 ? 1 : kHalves;
  const std::byte* const codes = page + unsigned(4 * kBlockTokens * place.column + 16 * place.row);
  const std::byte* const scales =
      page + unsigned(2 * t.lane()) + (kLayout.k_metadata + hack::scales_offset(kDim));
  // Here, as no load moves to before a barrier.
  const Words2 m = load_pair(page + unsigned(8 * t.lane()) + kLayout.k_metadata);
  const unsigned scale[kHalves] = {load_aligned_half(scales), load_aligned_half(scales + 64)};
  Words4 keys[kDim / kSpan][kHalves];
  KVLANE_UNROLL
  for (int first = 0; first < kHalves; first += kTogether) {
    KVLANE_UNROLL
    for (int i = 0; i < kDim / kSpan * kLoaded; ++i) {
      const int span = i / kLoaded, h = first + i % kLoaded;
      if (first % kLoaded != 0) continue;
      keys[span][h] = load_once(codes + (4 * 4 * kBlockTokens * span + 128 * h));
    }
    float dot[kQueries][kTogether][4] = {};
    KVLANE_UNROLL
    for (int part = 0; part < kDim / kSpan * 4; ++part) {
      add_products(t, keys, part, first, place, shared, dot);
    }
    KVLANE_UNROLL
    for (int i = 0; i < kQueries * kTogether; ++i) {
      const int n = i / kTogether, h = i % kTogether;
      scores[n][first + h] = sum_of_columns(t, place, dot[n][h]);
    }
  }
  KVLANE_UNROLL
  for (int n = 0; n < kQueries; ++n) {
    const Floats4 y = load_floats(shared.for_means[n] + 4 * t.lane());
    float base = 0;
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) base = fused(number_of(m, i), y.x[i], base);
    base = sum_of_lanes(t, base);
    KVLANE_UNROLL
    for (int h = 0; h < kHalves; ++h) scores[n][h] = fused(low_fp16(scale[h]), scores[n][h], base);
  }
}

// Scores become weights, and the state moves to the new maximum. The weights with scales of V in
// them go to shared memory; those without meet the means, a quarter of their sum in each column.
template <int kQueries, class Thread>
KVLANE_DEVICE void weigh(Thread& t, const std::byte* page, Place place,
                         const float (&scores)[kQueries][kHalves], Outputs<kQueries>& outputs,
                         DequantiseCoresShared& shared) {
  const std::byte* const metadata = page + kLayout.v_metadata;
  float scale[kHalves];
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    const std::byte* const at = metadata + unsigned(2 * t.lane()) + hack::scales_offset(kDim);
    scale[h] = low_fp16(load_aligned_half(at + 64 * h)) *
               unit_at(bit_of_value(h, t.lane() / 4 % 2, t.lane() % 4));
  }
  Words2 m[kDim / 32];
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) m[q] = load_pair(metadata + unsigned(8 * place.row) + 64 * q);
  float of_max[kQueries];
  KVLANE_UNROLL
  for (int n = 0; n < kQueries; ++n) of_max[n] = shared.states.max[t.warp()][n];
  t.sync_warp();  // all have read these, and the last page's weights
  KVLANE_UNROLL
  for (int n = 0; n < kQueries; ++n) {
    const float by = shared.scales[n];
    const float max = larger(of_max[n], max_of_lanes(t, larger(scores[n][0], scores[n][1])));
    float x[kHalves] = {};
    KVLANE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      x[h] = power_of_two(fused(scores[n][h], by, -max * by));
      shared.weights[t.warp()][n][16 * h + t.lane() / 2].x[t.lane() % 2] = x[h] * scale[h];
    }
    const float sum = sum_of_lanes(t, x[0] + x[1]);
    float keep = 1;
    if (max != of_max[n]) {  // seldom, after the first pages
      keep = power_of_two((of_max[n] - max) * by);
      KVLANE_UNROLL
      for (int i = 0; i < kDim / 8; ++i) outputs.of[n][i / 4][i % 4] *= keep;
    }
    if (t.lane() == 0) {
      float& of_sum = shared.states.sum[t.warp()][n];
      of_sum = of_sum * keep + sum;
      shared.states.max[t.warp()][n] = max;
    }
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      float& out = outputs.of[n][i / 4][i % 4];
      out = fused(number_of(m[i / 4], i % 4), sum / 4, out);
    }
  }
  t.sync_warp();
}

template <int kQueries, class Thread>
KVLANE_DEVICE void add_values(Thread& t, const Words4 (&codes)[kDim / 32], Place place,
                              const DequantiseCoresShared& shared, Outputs<kQueries>& outputs) {
  // Two tokens at a time: 32 h + 8 column + 4 u + 2 j, + 1.
  KVLANE_UNROLL
  for (int part = 0; part < 8; ++part) {
    const int h = part / 4, u = part / 2 % 2, j = part % 2;
    if (kQueries > 1) t.sync_warp();
    DequantiseCoresShared::Pair weights[kQueries];
    KVLANE_UNROLL
    for (int n = 0; n < kQueries; ++n) {
      weights[n] = shared.weights[t.warp()][n][16 * h + 4 * place.column + 2 * u + j];
    }
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int bit = bit_of_value(h, u, 2 * j + i);
      KVLANE_UNROLL
      for (int channel = 0; channel < kDim / 8; ++channel) {
        const int q = channel / 4, c = channel % 4;
        const std::uint32_t word = codes[q].w[c];
        const float v = value_at(word, dequantise::turned(word, 16), bit);
        KVLANE_UNROLL
        for (int n = 0; n < kQueries; ++n) {
          outputs.of[n][q][c] = fused(v, weights[n].x[i], outputs.of[n][q][c]);
        }
      }
    }
  }
}

template <int kQueries, class Thread>
KVLANE_DEVICE void attend_pages(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                                Place place, DequantiseCoresShared& shared,
                                Outputs<kQueries>& outputs) {
  float scores[kQueries][kHalves];
  Words4 codes[kDim / 32];
  const auto begin = [&](const std::byte* page) {
    score(t, page, place, shared, scores);
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      codes[q] = load_once(page + unsigned(4 * kDim * place.column + 16 * place.row) +
                           (kLayout.v_codes + 128 * q));
    }
  };
  const auto end = [&](const std::byte* page) {
    weigh(t, page, place, scores, outputs, shared);
    add_values(t, codes, place, shared, outputs);
  };
  dequantise::for_pages(t, batch, unit, begin, end);
}

template <int kQueries, class Thread>
KVLANE_DEVICE void share_state(Thread& t, Place place, const Outputs<kQueries>& outputs,
                               DequantiseCoresShared& shared) {
  KVLANE_UNROLL
  for (int n = 0; n < kQueries; ++n) {
    if (t.lane() == 0) {
      float& max = shared.states.max[t.warp()][n];
      max = shared.states.sum[t.warp()][n] == 0 ? minus_infinity() : max * shared.scales[n];
    }
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      Floats4 out;
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) out.x[i] = sum_of_lanes(t, outputs.of[n][q][i], 4);
      if (place.column != 0) continue;
      float(&of_query)[kDim] = shared.states.warps[t.warp()].out[n];
      store_floats(of_query + 4 * hack_decode::place_of<2>(8 * q + place.row, n), out);
    }
  }
}

}  // namespace dequantise_cores

// As attend_dequantised(), for units of up to kQueries queries.
template <int kQueries, class Thread>
KVLANE_DEVICE void attend_dequantised_on_cores(Thread& t, const HackDecodeBatch& batch,
                                               const DecodeUnit& unit,
                                               DequantiseCoresShared& shared) {
  using namespace dequantise_cores;
  const Place place{t.lane() / 4, t.lane() % 4};
  Outputs<kQueries> outputs;
  KVLANE_UNROLL
  for (int n = 0; n < kQueries; ++n) {
    if (t.lane() == 0) {
      shared.states.max[t.warp()][n] = dequantise::kNoScore;
      shared.states.sum[t.warp()][n] = 0;
    }
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 8; ++i) outputs.of[n][i / 4][i % 4] = 0;
  }
  t.wait_previous();
  dequantise_cores::share_queries(t, batch, unit, shared);
  t.sync_block();
  dequantise_cores::attend_pages(t, batch, unit, place, shared, outputs);
  dequantise_cores::share_state(t, place, outputs, shared);
  hack_decode::store_states<2>(t, batch, unit, shared.states);
}

}  // namespace kvlane
