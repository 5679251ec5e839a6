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
// the next and the loop reads its results: so a turn has two pages, and begins with none on its
// way. Four pages a turn are no faster.
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
  float offset[2];  // kWeightBits less what weights are beside, in units of log2
  float most[2];    // of the exponents that this lane has made so far, as they are beside that
  float scale[2];   // half of a query's
  std::int32_t end[2];
};

// Of a page, for a lane's pairs and tokens: what is there before scores are.
struct OfPage {
  float scales[16];  // of K's tokens
  float base[2];     // what all exponents of a pair have in common
};

// Weights from scores, as operands of 16 tokens each, and the largest exponents of them that this
// lane has.
KVLANE_DEVICE void weigh(const std::int32_t (&dot)[32], const OfPage& page, const Pairs& pairs,
                         std::uint32_t (&operands)[4][4], float (&seen)[2]) {
  float most[2][2];
  KVLANE_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int tile = i / 2, half = i % 2;
    float x[2];
    KVLANE_UNROLL
    for (int j = 0; j < 2; ++j) {
      x[j] = fused(static_cast<float>(dot[2 * i + j]) * page.scales[2 * tile + j],
                   pairs.scale[half], page.base[half]);
    }
    const float of_both = larger(x[0], x[1]);
    float& so_far = most[half][tile % 2];
    so_far = tile < 2 ? of_both : larger(so_far, of_both);
    operands[i / 4][i % 4] = pack_fp16(power_of_two(x[0]), power_of_two(x[1]));
  }
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) seen[half] = larger(most[half][0], most[half][1]);
}

// Moves what weights of a pair are beside to the page's maximum: where that is kMargin too large,
// or, with `first`, where the pair sees the page. `keep` is what is left of weights so far. A
// pair's own exponents alone decide.
template <class Thread>
KVLANE_DEVICE void move(Thread& t, const bool (&first)[2], const float (&seen)[2], OfPage& page,
                        Pairs& pairs, float (&keep)[2]) {
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float most = prefill::max_of_columns(t, seen[half]);
    const bool moves = first[half] || most > kWeightBits + kMargin;
    const float by = moves ? most - kWeightBits : 0;
    keep[half] = power_of_two(-by);
    page.base[half] -= by;
    pairs.offset[half] -= by;
    pairs.most[half] = moves ? kWeightBits : pairs.most[half];
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
  using PageStage = Stage<Shared::kStages>;

  Thread& t;
  const HackPrefillBatch& batch;
  Shared& shared;
  int warpgroup;
  int count;           // of pages
  PageStage stage{};   // of the page whose weights are made
  PageStage before{};  // of the page before
  Pairs pairs{};
  float out[kOutputs];

  KVLANE_DEVICE int pair_of_half(int half) const { return pair_of<1>(t, 0, half); }

  KVLANE_DEVICE void share_part(int part, int pair, int piece, const Words4& y) {
    Words4(&to)[2] = shared.parts[pair / kPrefillRows][part][pair % 8][piece];
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
      pairs.offset[half] = 0;
      pairs.most[half] = kWeightBits;
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
    done_with(shared.queries_there);
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
  KVLANE_DEVICE void add_values(int of_stage, const std::uint32_t (&operands)[4][4]) {
    KVLANE_UNROLL
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      t.multiply_fp16(out, operands[step], shared.values[of_stage][0][0], step);
    }
    t.close_products();
  }

  // When K is there, and before scores are.
  KVLANE_DEVICE void load_page(int page, OfPage& of) {
    const float* const scales = shared.key_scales[stage.index][t.lane() % 4];
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Floats4 s = load_floats(scales + 4 * i);
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) of.scales[4 * i + j] = s.x[j];
    }
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half)
      of.base[half] = 2 * pairs.scale[half] * mean_of(page, half);
  }
  KVLANE_DEVICE float mean_of(int page, int half) const {
    return shared.common[page / kPagesTogether % 2][pair_of_half(half)][page % kPagesTogether];
  }
  KVLANE_DEVICE void place_page(int page, OfPage& of) {
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      of.base[half] = page < pairs.end[half] ? of.base[half] + pairs.offset[half] : kUnseen;
    }
  }

  // The warp does without it from now on.
  KVLANE_DEVICE void done_with(gpu::Arrivals& done) { t.arrive_as_warp(done); }

  // Weights of a page go to `made`, from scores that come to `dot`, while V of the page before is
  // added with `held` and scores of the page behind come to `next`. Of the pages of a turn the
  // first one begins its own scores, too, and the last one no others.
  template <bool kFirst, bool kLast>
  KVLANE_DEVICE void step(int page, std::int32_t (&dot)[32], std::int32_t (&next)[32],
                          std::uint32_t (&held)[4][4], std::uint32_t (&made)[4][4]) {
    PageStage after = stage;
    after.advance();
    if constexpr (kFirst) {
      t.wait_arrivals(shared.keys_there[stage.index], stage.parity);
      t.begin_products();
      score(dot, stage.index);
    }
    t.wait_arrivals(shared.values_there[before.index], before.parity);
    t.begin_products();
    add_values(before.index, held);
    if constexpr (!kLast) {
      t.wait_arrivals(shared.keys_there[after.index], after.parity);
      t.begin_products();
      score(next, after.index);
    }
    OfPage of;
    load_page(page, of);
    place_page(page, of);
    t.template wait_products_but<kLast ? 1 : 2>(dot);
    float seen[2];
    weigh(dot, of, pairs, made, seen);
    const float most = kWeightBits + kMargin;
    const bool moved = t.ballot(seen[0] > most || seen[1] > most) != 0;
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) pairs.most[half] = larger(pairs.most[half], seen[half]);
    done_with(shared.keys_done[stage.index]);
    settle_all(made);
    // The wait is in both branches: before them the compiler would put it before the powers of two.
    // States move seldom, after the first pages.
    if (moved) {
      float keep[2];
      move(t, {false, false}, seen, of, pairs, keep);
      weigh(dot, of, pairs, made, seen);
      t.template wait_products_but<kLast ? 0 : 1>(out, held[0], held[1], held[2], held[3]);
      KVLANE_UNROLL
      for (int i = 0; i < kOutputs; ++i) out[i] *= keep[i % 4 / 2];
    } else {
      t.template wait_products_but<kLast ? 0 : 1>(out, held[0], held[1], held[2], held[3]);
    }
    done_with(shared.values_done[before.index]);
    before = stage;
    stage = after;
  }
  KVLANE_DEVICE void settle_all(std::uint32_t (&operands)[4][4]) {
    KVLANE_UNROLL
    for (auto& of_tokens : operands) t.settle(of_tokens);
  }

  KVLANE_DEVICE void first_page(std::uint32_t (&made)[4][4]) {
    std::int32_t dot[32];
    float keep[2], seen[2];
    OfPage of;
    t.wait_arrivals(shared.keys_there[0], 0);
    t.begin_products();
    score(dot, 0);
    load_page(0, of);
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) pairs.offset[half] = kWeightBits - of.base[half];
    place_page(0, of);
    t.template wait_products_but<0>(dot);
    weigh(dot, of, pairs, made, seen);
    move(t, {0 < pairs.end[0], 0 < pairs.end[1]}, seen, of, pairs, keep);
    weigh(dot, of, pairs, made, seen);
    done_with(shared.keys_done[0]);
    stage.advance();
  }

  KVLANE_DEVICE void attend() {
    std::int32_t even[32], odd[32];
    std::uint32_t held[4][4], made[4][4];
    first_page(held);
    int page = 1;
    KVLANE_NO_UNROLL
    for (; page + 2 <= count; page += 2) {
      step<true, false>(page, even, odd, held, made);
      step<false, true>(page + 1, odd, even, made, held);
    }
    if (page < count) {
      step<true, true>(page, even, odd, held, made);
      last_values(made);
    } else {
      last_values(held);
    }
  }
  KVLANE_DEVICE void last_values(std::uint32_t (&held)[4][4]) {
    t.wait_arrivals(shared.values_there[before.index], before.parity);
    t.begin_products();
    add_values(before.index, held);
    t.template wait_products_but<0>(out);
  }

  // Mixes channels back where they are, as mix_row() does it, in the same order: channel
  // 8 part + 2 column + i of a pair is out[4 part + 2 half + i].
  KVLANE_DEVICE void mix_back() {
    if (batch.mix.run == 1) return;
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 2; i += 2) mix_two(out[i], out[i + 1]);
    KVLANE_UNROLL
    for (int step = 1; step < 4; step *= 2) {
      if (2 * step >= batch.mix.run) continue;
      const float sign = (t.lane() & step) != 0 ? -1 : 1;
      KVLANE_UNROLL
      for (int i = 0; i < kDim / 2; ++i) {
        const float other = float_of(t.shuffle(bits_of(out[i]), t.lane() ^ step));
        out[i] = fused(sign, out[i], other);
      }
    }
    KVLANE_UNROLL
    for (int apart = 1; apart < kDim / 8; apart *= 2) {
      if (8 * apart >= batch.mix.run) continue;
      KVLANE_UNROLL
      for (int i = 0; i < kDim / 2; ++i) {
        if ((i / 4 & apart) == 0) mix_two(out[i], out[i + 4 * apart]);
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 2; ++i) out[i] = times(out[i], batch.mix.scale);
  }
  KVLANE_DEVICE static void mix_two(float& x, float& y) {
    const float a = x, b = y;
    x = a + b;
    y = a - b;
  }

  // A lane has 8 bytes of 32 that are neighbours in a row.
  KVLANE_DEVICE void store() {
    const int column = t.lane() % 4;
    std::int32_t rows[2];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float most = prefill::max_of_columns(t, pairs.most[half]);
      const float unit = power_of_two(-most);
      KVLANE_UNROLL
      for (int part = 0; part <= kDim / 8; ++part) {
        out[4 * part + 2 * half] *= unit;
        out[4 * part + 2 * half + 1] *= unit;
      }
      rows[half] = shared.rows[pair_of_half(half)];
      if (column == 0 && rows[half] >= 0) {
        const float sum = out[kDim / 2 + 2 * half];
        batch.max[rows[half]] = sum == 0 ? minus_infinity() : most - pairs.offset[half];
        batch.sum[rows[half]] = sum;
      }
    }
    mix_back();
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (rows[half] < 0) continue;
      float* const to = batch.out + std::size_t(rows[half]) * batch.head_dim + 2 * column;
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) {
        if (8 * part >= batch.head_dim) continue;
        const float* const own = out + (4 * part + 2 * half);
        store_pair(reinterpret_cast<std::byte*>(to + 8 * part), bits_of(own[0]), bits_of(own[1]));
      }
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
  constexpr int kOfScoring = Shared::kWarps * Thread::kWarpArrivals;
  constexpr int kOfBringing = gpu::kWarpgroupThreads / gpu::kWarpThreads * Thread::kWarpArrivals;
  if (t.index() == 0) {
    t.init_arrivals(shared.first_means_there, 1);
    t.init_arrivals(shared.queries_there, kOfScoring);
  }
  if (t.index() < Shared::kPlaces) t.init_arrivals(shared.pages_there[t.index()], 1);
  if (t.index() < Shared::kStages) {
    t.init_arrivals(shared.keys_there[t.index()], kOfBringing);
    t.init_arrivals(shared.values_there[t.index()], kOfBringing);
    t.init_arrivals(shared.keys_done[t.index()], kOfScoring);
    t.init_arrivals(shared.values_done[t.index()], kOfScoring);
  }
  t.publish();  // for copies, which arrive, too
  t.sync_block();
  if (warpgroup == kHackHopperScoring) {
    t.template leave_registers<kHackHopperBringingRegisters>();
    if (count > 0) {
      const std::int32_t* const ids =
          batch.tables + std::size_t(unit.sequence) * batch.table_stride + first;
      const std::byte* const pages = batch.slabs + unit.kv_head * batch.layout.bytes;
      const unsigned thread = unsigned(t.index()) % gpu::kWarpgroupThreads;
      hack_hopper::Bringer<kDim, kBits, Thread> bringer{t,     batch, shared, ids,
                                                        pages, count, thread};
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
