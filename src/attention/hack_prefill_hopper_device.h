// Prefill attention on codes (spec/hack.md) for kernels on sm_90a, by both axes: as
// attention/hack_prefill_device.h has it, but for warpgroups, whose products go on beside all else,
// and with weights in 16 bits. A block of threads is two warpgroups of 64 pairs each. Formulas:
// attention/hack_page.h.
//
// Scores are products of codes in 8 bits. V is opened when it is unpacked, to m + s (c - h) in
// binary16, once for all pairs of the block, and meets weights in binary16. Weights in 8 bits would
// want half of the matrix unit's time for it, but two instructions an output and page, to take its
// sums out of a page's units, and three a weight, to put V's scales in and to find the page's
// largest: more than all else. Here outputs stay where the matrix unit adds to them. The sum of
// weights is that of one more channel of V, of ones.
//
// While page i is scored and V of the page before is added, the threads unpack K of page i + 1 and
// V of page i; then they make weights of the scores while V is still being added. So K and V have
// two places each, one barrier is enough for a page, and pages come by asynchronous copies three
// ahead, to four places.
//
// Tokens are in one order in rows of K and along rows of V: the one in which a word's codes of V
// become pieces of 16 bytes in the thread that has the word, and neighbouring tokens of K rows that
// 8 threads write to all banks. Weights lie in the scores as operands of the next product.
//
// Weights are 2^15 times what they are, so that binary16 has all its digits down to 2^-29 of the
// largest weight. A pair's sums run over its pages in order, one page a step, as there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_device.h"

namespace kvlane {

inline constexpr int kHackHopperWarpgroups = 2;
inline constexpr int kHackHopperThreads = kHackHopperWarpgroups * gpu::kWarpgroupThreads;

// kDim is head_dim rounded up to 64 or 128.
template <int kDim, int kBits>
struct HackHopperShared {
  static constexpr int kPieces = 8;  // of rows, all of 128 bytes
  static constexpr int kPairs = kHackHopperWarpgroups * 64;
  static constexpr int kRows = kDim + 8;  // of V: one of ones behind the channels, and zeros
  static constexpr int kPlaces = 4;       // of pages
  static constexpr hack::Plane kPlane{kBits, hack::Axis::kBoth, 0, hack::Meta::kFp16};
  static constexpr int kPageWords =
      static_cast<int>(hack::page_layout(kPlane, kPlane, {kDim, kDim}).bytes / sizeof(gpu::Words4));

  alignas(1024) gpu::Words4 queries[kPairs][kPieces];
  alignas(1024) gpu::Words4 keys[2][kBlockTokens][kPieces];
  union {
    alignas(1024) gpu::Words4 values[2][kRows][kPieces];
    float out[kHackHopperThreads / gpu::kWarpThreads][8][kDim];  // in the end
  };
  gpu::Words4 pages[kPlaces][kPageWords];
  // Of K's tokens, for the columns of scores that a lane has; four more are for the banks' sake.
  alignas(16) float key_scales[2][4][20];
  const std::int32_t* ids;
  const std::byte* slabs;
  std::int32_t pages_end;
  std::int32_t rows[kPairs];
  float scales[kPairs];  // half of a query's
  float common[kPairs][hack_prefill::kPagesTogether];
};

namespace hack_hopper {

using namespace hack_prefill;

inline constexpr float kWeightBits = 15;
// Of no weight, in units of log2.
inline constexpr float kUnseen = -0x1p100F;

// Where a token is in rows of K and along those of V, and back.
KVLANE_DEVICE unsigned place_of_token(unsigned token) {
  return token / 8 % 4 * 16 + token / 32 * 8 + token % 2 * 4 + token / 2 % 2 * 2 + token / 4 % 2;
}
KVLANE_DEVICE unsigned token_at(unsigned place) {
  return place / 8 % 2 * 32 + place / 16 * 8 + place % 2 * 4 + place / 2 % 2 * 2 + place / 4 % 2;
}

// A number twice, in binary16, which has it and no smaller than 2^-14.
constexpr std::uint32_t twice(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t magnitude = (bits >> 13 & 0x3FFFFU) - (112U << 10);
  const std::uint32_t half = (bits >> 16 & 0x8000U) | magnitude;
  return half << 16 | half;
}

// By all threads. What is behind head_dim meets codes of 0 in the queries.
template <int kDim, int kBits, class Thread>
KVLANE_DEVICE void unpack_keys(Thread& t, const Page& page, int place,
                               HackHopperShared<kDim, kBits>& shared) {
  constexpr unsigned kTogether = kHackHopperThreads / kBlockTokens;  // pieces
  const unsigned token = t.index() % kBlockTokens, row = place_of_token(token);
  KVLANE_UNROLL
  for (unsigned i = 0; i < kDim / 16 / kTogether; ++i) {
    const unsigned piece = t.index() / kBlockTokens + kTogether * i;
    if (16 * piece >= unsigned(page.head_dim)) break;
    Words4 codes;
    KVLANE_UNROLL
    for (int j = 0; j < kBits / 2; ++j) {
      std::uint32_t registers[8 / kBits];
      unpack_word<kBits>(page.word(4 * (kBlockTokens * (piece * (kBits / 2) + j) + token)),
                         registers);
      KVLANE_UNROLL
      for (int r = 0; r < 8 / kBits; ++r) codes.w[j * (8 / kBits) + r] = registers[r];
    }
    shared.keys[place][row][piece ^ row % 8] = codes;  // cppcheck-suppress uninitvar ; as there
  }
  if (t.index() < kBlockTokens) {
    const unsigned column = t.index(), of = token_at(column);
    const unsigned scales = page.k_metadata + unsigned(hack::scales_offset(page.head_dim));
    const std::uint32_t pair = page.word(scales + 2 * (of - of % 2));
    shared.key_scales[place][column % 8 / 2][column / 8 * 2 + column % 2] =
        low_fp16(of % 2 == 0 ? pair : pair >> 16);
  }
}

// Codes of V become c - h in binary16: pair j of the piece for register 2 r ..., of a channel's
// words of one class. Bits of a code, in their place in a mantissa of 2^10, are so much of 2^10.
template <int kBits>
KVLANE_DEVICE std::uint32_t centred_pair(const std::uint32_t (&words)[kBits / 2], int r, int j) {
  constexpr int kShift = kBits == 2 ? 2 : 1;  // so that h has a digit in the mantissa
  const int in_word = kBits == 2 ? 2 * r + j % 2 : j % 2;
  const int at = kBits * in_word + kShift;
  const std::uint32_t word = words[kBits == 2 ? 0 : r];
  const std::uint32_t placed = j / 2 == 0 ? word << kShift : word >> (8 - kShift);
  const std::uint32_t bits = (placed & ((1U << kBits) - 1) * 0x00010001U << at) | 0x64006400U;
  const float unit = 1.0F / static_cast<float>(1 << at);
  constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2;
  return fused_fp16(bits, twice(unit), twice(-(1024 * unit + kMiddle)));
}

// By all threads, each of which has one class of tokens.
template <int kDim, int kBits, class Thread>
KVLANE_DEVICE void unpack_values(Thread& t, const Page& page, unsigned codes, int place,
                                 HackHopperShared<kDim, kBits>& shared) {
  const unsigned of_class = t.index() / 64;
  Words4 of_tokens[2];
  load_scales(page, page.v_metadata, of_class, of_tokens);
  KVLANE_UNROLL
  for (unsigned i = 0; i < kDim / 64; ++i) {
    const unsigned channel = t.index() % 64 + 64 * i;
    if (channel >= unsigned(page.head_dim)) break;
    std::uint32_t words[kBits / 2];
    KVLANE_UNROLL
    for (int r = 0; r < kBits / 2; ++r) {
      const unsigned word = (hack::kValueClasses * r + of_class) * page.head_dim + channel;
      words[r] = page.word(codes + 4 * word);
    }
    const std::uint32_t pair = page.word(page.v_metadata + 2 * (channel - channel % 2));
    const std::uint32_t mean = byte_perm(pair, 0, channel % 2 == 0 ? 0x1010 : 0x3232);
    KVLANE_UNROLL
    for (int r = 0; r < 2; ++r) {
      Words4 piece;
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const Words4& s = of_tokens[r];
        const std::uint32_t scale =
            byte_perm(s.w[j % 2], s.w[2 + j % 2], j / 2 == 0 ? 0x5410 : 0x7632);
        piece.w[j] = fused_fp16(centred_pair<kBits>(words, r, j), scale, mean);
      }
      // cppcheck-suppress uninitvar ; the loop fills it
      shared.values[place][channel][(2 * of_class + r) ^ channel % 8] = piece;
    }
  }
}

// The lane's pairs: rows lane / 4 and lane / 4 + 8 of those of the warp.
struct Pairs {
  float max[2];    // of the pages so far, in units of log2
  float scale[2];  // half of a query's
  std::int32_t end[2];
};

// Scores of a page become weights, in units of 2^-15, and `keep` what is left of those so far.
// Whether any lane of the warp has less than all.
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
    const float max = visible ? larger(old, seen) : old;
    pairs.max[half] = max;
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

// A block's work: everything below is by all of its threads.
template <int kDim, int kBits, class Thread>
struct Tile {
  using Shared = HackHopperShared<kDim, kBits>;
  static constexpr int kOutputs = kDim / 2 + 4;  // of a lane; the last four are of ones

  Thread& t;
  const HackPrefillBatch& batch;
  Shared& shared;
  int first, count;       // pages
  std::int32_t next = 0;  // the id of the page that is copied next
  Pairs pairs{};
  std::int32_t dot[32];
  float weights[32];
  std::uint32_t operands[4][4];
  float out[kOutputs];

  KVLANE_DEVICE int pair_of_half(int half) const { return pair_of<1>(t, 0, half); }
  KVLANE_DEVICE Page page_at(int page) const {
    return {shared.pages[page % Shared::kPlaces], batch.head_dim, unsigned(batch.layout.k_metadata),
            unsigned(batch.layout.v_metadata)};
  }

  // Begins to copy a page if there is one, and asks for the next one's id.
  KVLANE_DEVICE void copy_page(int page) {
    if (page < count) {
      const std::byte* const from = shared.slabs + next * batch.block_bytes;
      Words4* const to = shared.pages[page % Shared::kPlaces];
      KVLANE_UNROLL
      for (int i = 0; i < Shared::kPageWords; i += kHackHopperThreads) {
        const unsigned word = t.index() + i;
        if (sizeof(Words4) * word >= batch.layout.bytes) break;
        t.copy_async(to[word], from + sizeof(Words4) * word, true);
      }
      if (page + 1 < count) next = shared.ids[first + page + 1];
    }
    t.close_copies();
  }

  KVLANE_DEVICE void begin(const PrefillUnit& unit, int group) {
    copy_queries(t, batch, unit, group, shared);
    for (int pair = t.index(); pair < Shared::kPairs; pair += t.threads()) {
      const bool there = pair < unit.pairs;
      const std::size_t row =
          there ? prefill::row_of(batch, unit, group, unit.first_pair + pair) : 0;
      shared.rows[pair] = there ? static_cast<std::int32_t>(row) : -1;
      shared.scales[pair] = there ? batch.queries.scales[row] * 0.5F : 0;
    }
    for (int i = t.index(); i < 2 * 8 * Shared::kPieces; i += t.threads()) {
      const int row = i / Shared::kPieces % 8;
      const std::uint32_t pair = row == 0 ? twice(1) : 0;
      shared.values[i / (8 * Shared::kPieces)][kDim + row][i % Shared::kPieces] = {
          {pair, pair, pair, pair}};
    }
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = (unit.first_pair + pair_of_half(half)) / group;
      pairs.end[half] =
          (unit.position + row) / kBlockTokens - batch.window.recent - batch.window.sink;
      pairs.max[half] = prefill::lowest();
    }
    KVLANE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
  }

  KVLANE_DEVICE void score(int page) {
    const Words4& queries = shared.queries[t.warp() / 4 * 64][0];
    const Words4& keys = shared.keys[page % 2][0][0];
    t.template multiply_s8s8<false>(dot, queries, keys, 0);
    KVLANE_UNROLL
    for (int step = 1; step < kDim / 32; ++step) {
      t.template multiply_s8s8<true>(dot, queries, keys, step);
    }
    t.close_products();
  }
  KVLANE_DEVICE void add_values(int page) {
    KVLANE_UNROLL
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      t.multiply_fp16(out, operands[step], shared.values[page % 2][0][0], step);
    }
    t.close_products();
  }

  KVLANE_DEVICE void unpack_keys_of(int page) {
    if (page < count) unpack_keys(t, page_at(page), page % 2, shared);
  }
  KVLANE_DEVICE void unpack_values_of(int page) {
    unpack_values(t, page_at(page), unsigned(batch.layout.v_codes), page % 2, shared);
  }

  KVLANE_DEVICE bool weigh_page(int page, float (&keep)[2]) {
    float common[2];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      common[half] = shared.common[pair_of_half(half)][page % kPagesTogether];
    }
    return weigh(t, dot, shared.key_scales[page % 2][t.lane() % 4], common, page, pairs, keep,
                 weights);
  }

  // What was unpacked is there for products of the next page, and one more page has come.
  KVLANE_DEVICE void end_page() {
    t.publish();
    t.template wait_copies_but<1>();
    t.sync_block();
  }

  KVLANE_DEVICE void first_page() {
    next = shared.ids[first];
    KVLANE_NO_UNROLL
    for (int page = 0; page < 3; ++page) copy_page(page);
    t.template wait_copies_but<1>();
    t.sync_block();
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) pairs.scale[half] = shared.scales[pair_of_half(half)];
    unpack_keys_of(0);
    end_page();
    copy_page(3);
    multiply_means<1>(t, batch, first, shared);
    t.begin_products();
    score(0);
    unpack_keys_of(1);
    unpack_values_of(0);
    t.template wait_products_but<0>(dot);
    float keep[2];
    weigh_page(0, keep);
    pack(weights, operands);
    end_page();
  }

  KVLANE_DEVICE void page(int page) {
    if (page % kPagesTogether == 0) multiply_means<1>(t, batch, first + page, shared);
    t.begin_products();
    score(page);
    add_values(page - 1);
    copy_page(page + 3);
    unpack_keys_of(page + 1);
    unpack_values_of(page);
    t.template wait_products_but<1>(dot);
    float keep[2];
    const bool moved = weigh_page(page, keep);
    t.template wait_products_but<0>(out, operands[0], operands[1], operands[2], operands[3]);
    // Seldom, after the first pages.
    if (moved) {
      KVLANE_UNROLL
      for (int i = 0; i < kOutputs; ++i) out[i] *= keep[i % 4 / 2];
    }
    pack(weights, operands);
    end_page();
  }

  KVLANE_DEVICE void last_values() {
    t.begin_products();
    add_values(count - 1);
    t.template wait_products_but<0>(out);
  }

  KVLANE_DEVICE void store() {
    constexpr float kUnit = 1.0F / (1 << int(kWeightBits));
    const int own = t.lane() / 4, column = t.lane() % 4;
    float(&states)[8][kDim] = shared.out[t.warp()];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) {
        float* const to = states[own] + ((8 * part + 2 * column) ^ own % 4 * 8);
        to[0] = out[4 * part + 2 * half] * kUnit;
        to[1] = out[4 * part + 2 * half + 1] * kUnit;
      }
      const int pair = pair_of_half(half);
      const std::int32_t row = shared.rows[pair];
      if (column == 0 && row >= 0) {
        const float sum = out[kDim / 2 + 2 * half] * kUnit;
        batch.max[row] = sum == 0 ? minus_infinity() : pairs.max[half];
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
  const int group = batch.heads / batch.kv_heads;
  const int own = (prefill_tokens(unit, group) - 1) / kBlockTokens;  // of the last pair
  const int first = batch.window.sink, count = own - batch.window.recent - first;
  if (t.index() == 0) {
    shared.ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
    shared.slabs = batch.slabs + unit.kv_head * batch.layout.bytes;
    shared.pages_end = first + count;
  }
  hack_hopper::Tile<kDim, kBits, Thread> tile{t, batch, shared, first, count};
  tile.begin(unit, group);
  t.sync_block();
  if (count > 0) {
    tile.first_page();
    KVLANE_NO_UNROLL
    for (int page = 1; page < count; ++page) tile.page(page);
    tile.last_values();
  }
  t.wait_copies();
  t.sync_block();
  tile.store();
}

}  // namespace kvlane
