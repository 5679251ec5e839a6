// Prefill attention on codes (spec/hack.md) for kernels on sm_90a, by both axes: as
// attention/hack_prefill_device.h has it, but for warpgroups, whose products go on beside all else,
// and with weights in 16 bits. Of a block's three warpgroups two score 64 pairs each, and one
// brings pages (attention/hack_prefill_hopper_pages_device.h). Formulas: attention/hack_page.h.
//
// Scores are products of codes in 8 bits. V of a page is opened to 16 bits, once for the 128 rows
// of the block: to m + s (c - h) in binary16, and meets weights in binary16. That is the only place
// where attention on codes opens what it reads: scores, and all of decode attention, stay on codes.
// Weights in 8 bits would want half of the matrix unit's time for it, but two instructions an
// output and page, to take its sums out of a page's units, and three a weight, to put V's scales in
// and to find the page's largest: more than all else. Here outputs stay where the matrix unit adds
// to them, and weights keep 11 bits. The sum of weights is that of one more channel of V, of ones.
//
// The warpgroups never meet: a stage of K or V has arrivals for "it is there", of the warps that
// brought it, and for "it is done with", of the warps that score, when they have waited for the
// products that read it. So one warpgroup's products run beside another one's weights, and pages
// are unpacked beside both.
//
// Within a warpgroup, too, scores of the page behind come while weights of a page are made, and V
// of the page before is added. Scores want registers of their own then, two pages' by turns. The
// compiler makes products wait for each other where one is on its way from one turn of a loop to
// the next and the loop reads its results: so a turn has four pages, and begins with none on its
// way.
//
// Weights lie in the scores as operands of the next product. They are 2^11 times what they are, so
// that binary16 has all its digits down to 2^-25 of the largest one. A pair's sums run over its
// pages in order, one page a step, as there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_hopper_pages_device.h"

namespace kvlane {
namespace hack_hopper {

// Weights are 2^11 times what they are beside a maximum that moves only when it is 2^4 too low: so
// they stay below the largest of binary16.
inline constexpr float kWeightBits = 11, kMargin = 4;
// Of no weight, in units of log2.
inline constexpr float kUnseen = -0x1p100F;

// The lane's pairs: rows lane / 4 and lane / 4 + 8 of those of the warp.
struct Pairs {
  float max[2];    // what weights are beside, in units of log2
  float most[2];   // the largest of the pages so far
  float scale[2];  // half of a query's
  std::int32_t end[2];
};

// Scores of a page become weights, in units of 2^-11, and `keep` what is left of those so far.
// Whether any lane of the warp has less than all; all lanes have read scales by then.
template <class Thread>
KVLANE_DEVICE bool weigh(Thread& t, const std::int32_t (&dot)[32], const float* key_scales,
                         const float (&common)[2], int page, Pairs& pairs, float (&keep)[2],
                         float (&weights)[32]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Floats4 s = load_floats(key_scales + 4 * i);
    KVLANE_UNROLL
    for (int j = 8 * i; j < 8 * i + 8; ++j) {
      weights[j] = static_cast<float>(dot[j]) * s.x[j / 4 % 2 * 2 + j % 2];
    }
  }
  bool moved = false;
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    float seen = weights[2 * half];
    KVLANE_UNROLL
    for (int i = 1; i < 16; ++i) seen = larger(seen, weights[i / 2 * 4 + 2 * half + i % 2]);
    seen = fused(prefill::max_of_columns(t, seen), pairs.scale[half], common[half]);
    const bool visible = page < pairs.end[half];
    const float old = pairs.max[half];
    const float max = visible && seen > old + kMargin ? seen : old;
    pairs.max[half] = max;
    pairs.most[half] = visible ? larger(pairs.most[half], seen) : pairs.most[half];
    moved = moved || max != old;
    keep[half] = power_of_two(old - max);
    const float base = visible ? common[half] - max + kWeightBits : kUnseen;
    KVLANE_UNROLL
    for (int i = 0; i < 16; ++i) {
      float& x = weights[i / 2 * 4 + 2 * half + i % 2];
      x = power_of_two(fused(x, pairs.scale[half], base));
    }
  }
  return t.ballot(moved) != 0;
}

// Weights as operands, 16 tokens each.
KVLANE_DEVICE void pack(const float (&weights)[32], std::uint32_t (&operands)[4][4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 16; ++i) {
    operands[i / 4][i % 4] = pack_fp16(weights[2 * i], weights[2 * i + 1]);
  }
}

// Of eight codes, as pairs of binary16.
KVLANE_DEVICE Words4 codes_in_fp16(std::uint32_t low, std::uint32_t high) {
  // With 128 more they are unsigned, and the low bits of 2^10 + 128.
  constexpr std::uint32_t kMore = 0x80808080, kTen = 0x64646464;
  constexpr std::uint32_t kLess = twice(-1152);
  const auto pair = [&](std::uint32_t codes, std::uint32_t which) {
    return fused_fp16(byte_perm(codes ^ kMore, kTen, which), twice(1), kLess);
  };
  return {{pair(low, 0x4140), pair(low, 0x4342), pair(high, 0x4140), pair(high, 0x4342)}};
}

// A warpgroup that scores: everything below is by all of its threads.
template <int kDim, int kBits, class Thread>
struct Scorer {
  using Shared = HackHopperShared<kDim, kBits>;
  static constexpr int kOutputs = kDim / 2 + 4;  // of a lane; the last four are of ones
  static constexpr int kPairs = 64;
  static constexpr int kPagesInFlight = 4;  // of a turn of the loop: 1, 2 or 4
  using PageStage = Stage<Shared::kStages>;

  Thread& t;
  const HackPrefillBatch& batch;
  Shared& shared;
  int warpgroup;
  int count;           // of pages
  PageStage stage{};   // of the page whose weights are made
  PageStage before{};  // of the page before
  Pairs pairs{};
  std::uint32_t operands[4][4];
  float out[kOutputs];

  KVLANE_DEVICE int pair_of_half(int half) const { return pair_of<1>(t, 0, half); }

  // What all scores of the warp's pairs have in common, of eight pages.
  KVLANE_DEVICE void multiply_means(int together) {
    const int lane = t.lane(), column = lane % 4, row = lane / 4, odd = row % 2;
    float d[4] = {};
    KVLANE_UNROLL
    for (int piece = column; piece < Shared::kParts + column; piece += 4) {
      const Words4 m = shared.means[kPagesTogether * (together % 2) + row][piece];
      KVLANE_UNROLL
      for (int part = 1; part >= 0; --part) {
        const Words4(&y)[2] = shared.of_warps[t.warp()].parts[part][row][piece];
        t.mma_fp16(d, y[odd].w, m.w[0], m.w[1]);
        t.mma_fp16(d, y[1 - odd].w, m.w[2], m.w[3]);
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      shared.common[pair_of_half(i / 2)][2 * column + i % 2] = 2 * pairs.scale[i / 2] * d[i];
    }
    t.sync_warp();
  }

  KVLANE_DEVICE void share_part(int part, int pair, int piece, const Words4& y) {
    Words4(&to)[2] = shared.of_warps[pair / kPrefillRows].parts[part][pair % 8][piece];
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) to[i / 2 ^ pair % 2].w[i % 2 * 2 + pair / 8 % 2] = y.w[i];
  }

  // Queries of the warpgroup's pairs. All loads are on their way before the first is needed.
  KVLANE_DEVICE void prepare(const PrefillUnit& unit, int group) {
    constexpr int kThreads = gpu::kWarpgroupThreads;
    constexpr int kCodes = kPairs * Shared::kPieces / kThreads;
    constexpr int kRests = kPairs * Shared::kParts / kThreads;
    const int index = t.index() % kThreads, first = kPairs * warpgroup;
    const auto row_of = [&](int pair) {
      return pair < unit.pairs ? prefill::row_of(batch, unit, group, unit.first_pair + pair) : 0;
    };
    Words4 codes[kCodes], rests[kRests];
    KVLANE_UNROLL
    for (int i = 0; i < kCodes; ++i) {
      const int at = index + kThreads * i;
      const int pair = first + at / Shared::kPieces, piece = at % Shared::kPieces;
      const bool wanted = pair < unit.pairs && 16 * piece < batch.head_dim;
      codes[i] = decode::load_if(wanted, reinterpret_cast<const std::byte*>(batch.queries.codes),
                                 row_of(pair) * batch.head_dim + 16 * piece);
    }
    KVLANE_UNROLL
    for (int i = 0; i < kRests; ++i) {
      const int at = index + kThreads * i;
      const int pair = first + at / Shared::kParts, piece = at % Shared::kParts;
      const bool wanted = pair < unit.pairs && 8 * piece < batch.head_dim;
      rests[i] = decode::load_if(wanted, batch.queries.rests,
                                 row_of(pair) * (2 * batch.head_dim) + 16 * piece);
    }
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int pair = pair_of_half(half);
      const int row = (unit.first_pair + pair) / group;
      pairs.end[half] =
          (unit.position + row) / kBlockTokens - batch.window.recent - batch.window.sink;
      pairs.max[half] = pairs.most[half] = prefill::lowest();
      pairs.scale[half] = pair < unit.pairs ? batch.queries.scales[row_of(pair)] * 0.5F : 0;
      if (t.lane() % 4 == 0) {
        shared.rows[pair] = pair < unit.pairs ? static_cast<std::int32_t>(row_of(pair)) : -1;
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < kCodes; ++i) {
      const int at = index + kThreads * i;
      const int pair = first + at / Shared::kPieces, piece = at % Shared::kPieces;
      shared.queries[pair][piece ^ pair % 8] = query_piece<kBits>(codes[i]);
      if (16 * piece >= kDim) continue;
      share_part(0, pair, 2 * piece, codes_in_fp16(codes[i].w[0], codes[i].w[1]));
      share_part(0, pair, 2 * piece + 1, codes_in_fp16(codes[i].w[2], codes[i].w[3]));
    }
    KVLANE_UNROLL
    for (int i = 0; i < kRests; ++i) {
      const int at = index + kThreads * i;
      share_part(1, first + at / Shared::kParts, at % Shared::kParts, rests[i]);
    }
    KVLANE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
    t.publish();
    t.sync_warpgroup(warpgroup);
  }

  KVLANE_DEVICE void score(std::int32_t (&dot)[32], int of_stage) {
    const Words4& queries = shared.queries[kPairs * warpgroup][0];
    const Words4& keys = shared.keys[of_stage][0][0];
    t.template multiply_s8s8<false>(dot, queries, keys, 0);
    KVLANE_UNROLL
    for (int step = 1; step < kDim / 32; ++step) {
      t.template multiply_s8s8<true>(dot, queries, keys, step);
    }
    t.close_products();
  }
  KVLANE_DEVICE void add_values(int of_stage) {
    KVLANE_UNROLL
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      t.multiply_fp16(out, operands[step], shared.values[of_stage][0][0], step);
    }
    t.close_products();
  }

  KVLANE_DEVICE bool weigh_page(int page, const std::int32_t (&dot)[32], float (&keep)[2],
                                float (&weights)[32]) {
    float common[2];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      common[half] = shared.common[pair_of_half(half)][page % kPagesTogether];
    }
    return weigh(t, dot, shared.key_scales[stage.index][t.lane() % 4], common, page, pairs, keep,
                 weights);
  }

  // The warp does without it from now on.
  KVLANE_DEVICE void done_with(gpu::Arrivals& done) {
    if (t.lane() == 0) t.arrive(done);
  }

  // Weights of a page, from scores that come to `dot`, while V of the page before is added and
  // scores of the page behind come to `next`. Of the pages of a turn the first one begins its own
  // scores, too, and the last one no others.
  template <bool kFirst, bool kLast>
  KVLANE_DEVICE void step(int page, std::int32_t (&dot)[32], std::int32_t (&next)[32]) {
    PageStage after = stage;
    after.advance();
    if constexpr (kFirst) {
      t.wait_arrivals(shared.keys_there[stage.index], stage.parity);
      t.begin_products();
      score(dot, stage.index);
    }
    t.wait_arrivals(shared.values_there[before.index], before.parity);
    t.begin_products();
    add_values(before.index);
    if constexpr (!kLast) {
      t.wait_arrivals(shared.keys_there[after.index], after.parity);
      t.begin_products();
      score(next, after.index);
    }
    if (page % kPagesTogether == 0) multiply_means(page / kPagesTogether);
    t.template wait_products_but<kLast ? 1 : 2>(dot);
    float keep[2], weights[32];
    const bool moved = weigh_page(page, dot, keep, weights);
    done_with(shared.keys_done[stage.index]);
    t.settle(weights);
    // The wait is in both branches: before them the compiler would put it before the powers of two.
    // States move seldom, after the first pages.
    if (moved) {
      t.template wait_products_but<kLast ? 0 : 1>(out, operands[0], operands[1], operands[2],
                                                  operands[3]);
      KVLANE_UNROLL
      for (int i = 0; i < kOutputs; ++i) out[i] *= keep[i % 4 / 2];
    } else {
      t.template wait_products_but<kLast ? 0 : 1>(out, operands[0], operands[1], operands[2],
                                                  operands[3]);
    }
    done_with(shared.values_done[before.index]);
    pack(weights, operands);
    before = stage;
    stage = after;
  }

  KVLANE_DEVICE void first_page() {
    std::int32_t dot[32];
    float keep[2], weights[32];
    t.wait_arrivals(shared.keys_there[0], 0);
    t.begin_products();
    score(dot, 0);
    multiply_means(0);
    t.template wait_products_but<0>(dot);
    weigh_page(0, dot, keep, weights);
    done_with(shared.keys_done[0]);
    pack(weights, operands);
    stage.advance();
  }

  KVLANE_DEVICE void attend() {
    std::int32_t even[32], odd[32];
    first_page();
    int page = 1;
    if constexpr (kPagesInFlight > 1) {
      KVLANE_NO_UNROLL
      for (; page + kPagesInFlight <= count; page += kPagesInFlight) {
        step<true, false>(page, even, odd);
        if constexpr (kPagesInFlight == 4) {
          step<false, false>(page + 1, odd, even);
          step<false, false>(page + 2, even, odd);
        }
        step<false, true>(page + kPagesInFlight - 1, odd, even);
      }
    }
    KVLANE_NO_UNROLL
    for (; page < count; ++page) step<true, true>(page, even, odd);
    t.wait_arrivals(shared.values_there[before.index], before.parity);
    t.begin_products();
    add_values(before.index);
    t.template wait_products_but<0>(out);
  }

  KVLANE_DEVICE void store() {
    const int own = t.lane() / 4, column = t.lane() % 4;
    float(&states)[8][kDim] = shared.of_warps[t.warp()].out;
    t.sync_warp();
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float unit = power_of_two(pairs.max[half] - pairs.most[half] - kWeightBits);
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) {
        float* const to = states[own] + ((8 * part + 2 * column) ^ own % 4 * 8);
        to[0] = out[4 * part + 2 * half] * unit;
        to[1] = out[4 * part + 2 * half + 1] * unit;
      }
      const int pair = pair_of_half(half);
      const std::int32_t row = shared.rows[pair];
      if (column == 0 && row >= 0) {
        const float sum = out[kDim / 2 + 2 * half] * unit;
        batch.max[row] = sum == 0 ? minus_infinity() : pairs.most[half];
        batch.sum[row] = sum;
      }
      t.sync_warp();
      store_rows(t, batch, shared.rows + (pair - own), states);
      t.sync_warp();
    }
  }
};

}  // namespace hack_hopper

// By all threads of a block of kHackHopperThreads, as attend_coded_tile() has it. batch.key_bits
// and batch.value_bits are kBits.
template <int kDim, int kBits, class Thread>
KVLANE_DEVICE void attend_coded_tile_on_hopper(Thread& t, const HackPrefillBatch& batch,
                                               const PrefillUnit& unit,
                                               HackHopperShared<kDim, kBits>& shared) {
  using Shared = HackHopperShared<kDim, kBits>;
  const int group = batch.heads / batch.kv_heads;
  const int own = (prefill_tokens(unit, group) - 1) / kBlockTokens;  // of the last pair
  const int first = batch.window.sink, count = own - batch.window.recent - first;
  const int warpgroup = t.warpgroup();
  if (t.index() == 0) t.init_arrivals(shared.first_means_there, 1);
  if (t.index() < Shared::kPlaces) t.init_arrivals(shared.pages_there[t.index()], 1);
  if (t.index() < Shared::kStages) {
    t.init_arrivals(shared.keys_there[t.index()], gpu::kWarpgroupThreads / gpu::kWarpThreads);
    t.init_arrivals(shared.values_there[t.index()], gpu::kWarpgroupThreads / gpu::kWarpThreads);
    t.init_arrivals(shared.keys_done[t.index()], Shared::kWarps);
    t.init_arrivals(shared.values_done[t.index()], Shared::kWarps);
  }
  t.publish();  // for copies, which arrive, too
  t.sync_block();
  if (warpgroup == kHackHopperScoring) {
    t.template leave_registers<kHackHopperBringingRegisters>();
    if (count > 0) {
      hack_hopper::Bringer<kDim, kBits, Thread> bringer{
          t,
          batch,
          shared,
          batch.tables + std::size_t(unit.sequence) * batch.table_stride + first,
          batch.slabs + unit.kv_head * batch.layout.bytes,
          count,
          unsigned(t.index()) % gpu::kWarpgroupThreads};
      bringer.prepare();
      bringer.bring();
    }
  } else {
    t.template take_registers<kHackHopperScoringRegisters>();
    hack_hopper::Scorer<kDim, kBits, Thread> scorer{t, batch, shared, warpgroup, count};
    scorer.prepare(unit, group);
    if (count > 0) scorer.attend();
    scorer.store();
  }
}

}  // namespace kvlane
