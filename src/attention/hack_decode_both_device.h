// Decode attention on pages of codes by both axes in kernels: a warp's pages, one after the other.
// What lies where and why: attention/hack_decode_device.h.
//
// A page is copied to shared memory while the one before it is computed, so a lane waits for no
// load, and no register holds what is on its way. Gaps between pieces of 16 bytes see to it that
// eight that one access takes are in all banks: two rows of lanes, four columns.
//
// What all scores of a page have in common, (sum of q m), is made for up to 16 pages at once: they
// are the rows of a product whose columns are query heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_decode_unit_device.h"

namespace kvlane {

// A page by both in shared memory, of codes and what belongs to them; channels from head_dim on are
// 0. All in pieces of 16 bytes.
template <int kDim, int kKeyBits, int kValueBits>
struct HackPageCopy {
  // What a column of lanes reads, and a gap behind it.
  static constexpr int kGap = 2;
  static constexpr int kKeyRow = kBlockTokens / 4 * kKeyBits / 2, kValueRow = kDim / 4;
  static constexpr int kKeys = kDim * kKeyBits / 2, kValues = kDim * kValueBits / 2;
  static constexpr int kScales = 2 * kBlockTokens / 16, kMeans = 2 * kDim / 16;
  gpu::Words4 keys[kKeys / kKeyRow * (kKeyRow + kGap)];
  gpu::Words4 values[kValues / kValueRow * (kValueRow + kGap)];
  gpu::Words4 numbers[kScales + kMeans + kScales];  // of K; of V means, and scales
};

// A warp's.
template <int kDim, int kKeyBits, int kValueBits>
struct HackPages {
  HackPageCopy<kDim, kKeyBits, kValueBits> copies[2];
  float base[kHackWarpPages][kDecodeColumns];
  gpu::Words4 queries[kDim / hack_decode::kSpan][gpu::kWarpThreads];  // of each lane
  gpu::Floats4 heads[gpu::kWarpThreads];                              // of each lane: its Heads
};

namespace hack_decode {

// What a page's sections are found by. Where kWhole, head_dim is the kernel's width, and all of
// this is known when it is compiled.
template <bool kWhole>
struct PageShape {
  int head_dim;
  unsigned v_codes, k_metadata, v_metadata;  // offsets in bytes
};
template <int kDim, int kKeyBits, int kValueBits, bool kWhole>
KVLANE_DEVICE PageShape<kWhole> page_shape(const hack::PageLayout& layout, int head_dim) {
  if constexpr (!kWhole) {
    return {head_dim, unsigned(layout.v_codes), unsigned(layout.k_metadata),
            unsigned(layout.v_metadata)};
  }
  constexpr hack::PageLayout kLayout =
      hack::page_layout({kKeyBits, hack::Axis::kBoth, 0, hack::Meta::kFp16},
                        {kValueBits, hack::Axis::kBoth, 0, hack::Meta::kFp16}, {kDim, kDim});
  return {kDim, unsigned(kLayout.v_codes), unsigned(kLayout.k_metadata),
          unsigned(kLayout.v_metadata)};
}

// Begins to copy a page, by a warp.
template <int kDim, int kKeyBits, int kValueBits, bool kWhole, class Thread>
KVLANE_DEVICE void copy_page(Thread& t, const std::byte* page, const PageShape<kWhole>& shape,
                             HackPageCopy<kDim, kKeyBits, kValueBits>& copy) {
  using Copy = HackPageCopy<kDim, kKeyBits, kValueBits>;
  const unsigned lane = static_cast<unsigned>(t.lane()) % kWarpThreads, head_dim = shape.head_dim;
  const auto place = [&](unsigned i, unsigned row) {  // of piece i + lane, in rows with gaps
    return lane + Copy::kGap * (lane / row) + i / row * (row + Copy::kGap);
  };
  static_assert(Copy::kKeyRow <= int(kWarpThreads) && kWarpThreads % Copy::kKeyRow == 0);
  KVLANE_UNROLL
  for (unsigned i = 0; i < Copy::kKeys; i += kWarpThreads) {
    const bool there = kWhole || i + lane < head_dim * kKeyBits / 2;
    t.copy_async(copy.keys[place(i, Copy::kKeyRow)],
                 page + (there ? 16 * lane : 0) + std::size_t{16} * i, there);
  }
  KVLANE_UNROLL
  for (unsigned i = 0; i < Copy::kValues; i += kWarpThreads) {
    const unsigned row = (i + lane) / Copy::kValueRow, in_row = (i + lane) % Copy::kValueRow;
    const bool there = kWhole || 4 * in_row < head_dim;
    const unsigned from = kWhole ? 16 * lane : there ? 4 * row * head_dim + 16 * in_row : 0;
    const unsigned to = Copy::kValueRow % kWarpThreads == 0
                            ? lane + i + i / Copy::kValueRow * Copy::kGap
                            : place(i, Copy::kValueRow);
    t.copy_async(copy.values[to],
                 page + (shape.v_codes + from) + (kWhole ? std::size_t{16} * i : 0), there);
  }
  constexpr unsigned kNumbers = 2 * Copy::kScales + Copy::kMeans;
  KVLANE_UNROLL
  for (unsigned i = 0; i < kNumbers; i += kWarpThreads) {
    const unsigned piece = i + lane, in_values = piece - Copy::kScales;
    if (piece >= kNumbers) break;
    const std::byte* const of_keys = page + (shape.k_metadata + 2 * head_dim);
    if (kWhole) {  // one behind the other
      t.copy_async(copy.numbers[piece], of_keys + 16 * lane + std::size_t{16} * i, true);
    } else if (piece < Copy::kScales) {
      t.copy_async(copy.numbers[piece], of_keys + 16 * piece, true);
    } else if (in_values < Copy::kMeans) {
      const bool there = 8 * in_values < head_dim;
      t.copy_async(copy.numbers[piece], page + shape.v_metadata + (there ? 16 * in_values : 0),
                   there);
    } else {
      t.copy_async(copy.numbers[piece],
                   page + shape.v_metadata + 2 * head_dim + 16 * (in_values - Copy::kMeans), true);
    }
  }
}

// What lanes have of a page that is there.
template <int kDim, int kKeyBits, int kValueBits>
KVLANE_DEVICE void take_keys(const HackPageCopy<kDim, kKeyBits, kValueBits>& copy, Place place,
                             Keys<kDim, kKeyBits>& keys) {
  using Copy = HackPageCopy<kDim, kKeyBits, kValueBits>;
  constexpr int kRow = Copy::kKeyRow + Copy::kGap, kWords = kKeyBits / 2;
  const Words4* const own = copy.keys + (kRow * place.column + place.row);
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) {
    KVLANE_UNROLL
    for (int i = 0; i < kHalves * kWords; ++i) {
      const int h = i / kWords, word = i % kWords;
      keys.of[span][h][word] = own[kSpan / 16 * kRow * span + kBlockTokens / 4 * word + 8 * h];
    }
  }
}
template <int kDim, int kKeyBits, int kValueBits>
KVLANE_DEVICE void take_values(const HackPageCopy<kDim, kKeyBits, kValueBits>& copy, Place place,
                               int q, Values<kValueBits>& values) {
  using Copy = HackPageCopy<kDim, kKeyBits, kValueBits>;
  constexpr int kRow = Copy::kValueRow + Copy::kGap;
  const Words4* const own = copy.values + (kRow * place.column + place.row);
  KVLANE_UNROLL
  for (int i = 0; i < kValueBits / 2; ++i) {
    values.of[i] = own[hack::kValueClasses * kRow * i + 8 * q];
  }
}
// Four numbers in binary16: 32 i + 4 row ... + 3 of those from `pieces` on.
KVLANE_DEVICE Words2 take_numbers(const Words4* pieces, Place place, int i) {
  return half_of(pieces[4 * i + place.row / 2], place.row % 2);
}

// What is loaded where a unit begins, all of it before any is used: channels 32 span + 8 column ...
// of means, of the pages `row` and, of more than eight, row + 8; and of this lane's column, of
// queries u and what is left of y, and what scores take of u.
template <int kDim>
struct Operands {
  Words4 means[kDim / 32][2];
  Words4 rests[kDim / 32];
  Words2 codes[kDim / 32];
  Words4 queries[kDim / kSpan];
  Heads heads;
};
template <int kDim>
KVLANE_DEVICE void load_means(const std::byte* const (&means)[2], bool many, int head_dim,
                              Place place, Operands<kDim>& operands) {
  KVLANE_UNROLL
  for (int span = 0; span < kDim / 32; ++span) {
    const int channel = 32 * span + 8 * place.column;
    const bool inside = channel < head_dim;
    operands.means[span][0] = decode::load_if(inside, means[0], 2 * channel);
    operands.means[span][1] = decode::load_if(inside && many, means[1], 2 * channel);
  }
}
template <int kHeads, int kDim>
KVLANE_DEVICE void load_operands(const HackDecodeBatch& batch, const DecodeUnit& unit, int head_dim,
                                 Place place, Operands<kDim>& operands) {
  const int query = query_of_column<kHeads>(place.row);
  const std::size_t row = (first_row(batch, unit) + query) * head_dim;
  KVLANE_UNROLL
  for (int span = 0; span < kDim / 32; ++span) {
    const int channel = 32 * span + 8 * place.column;
    const bool there = channel < head_dim && query < unit.queries;
    operands.rests[span] = decode::load_if(there, batch.queries.rests, 2 * (row + channel));
    operands.codes[span] = Words2{};
    if (there) operands.codes[span] = load_pair(batch.queries.codes + row + channel);
  }
  load_queries<kHeads, kDim>(batch, unit, place, operands.queries);
  operands.heads = load_heads<kHeads>(batch, unit, place.column);
}

// Sums of y m of up to 16 pages, for all heads, and what else a lane needs for each page. What
// score_by_both() wants kTimes too large is.
template <int kDim, int kKeyBits, int kValueBits, class Thread>
KVLANE_DEVICE void share_operands(Thread& t, const Operands<kDim>& operands, Place place,
                                  HackPages<kDim, kKeyBits, kValueBits>& shared) {
  constexpr float kMore = kTimes<kKeyBits>;
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) {
    const std::uint32_t(&w)[4] = operands.queries[span].w;
    shared.queries[span][t.lane()] = {{w[0], w[2], w[1], w[3]}};
  }
  const Heads& heads = operands.heads;
  shared.heads[t.lane()] = {{heads.scale[0] / kMore, heads.scale[1] / kMore,
                             heads.centre[0] * kMore - kSumFloat,
                             heads.centre[1] * kMore - kSumFloat}};
  float d[4] = {};
  KVLANE_UNROLL
  for (int span = 0; span < kDim / 32; ++span) {
    const Words4(&m)[2] = operands.means[span];
    const Words4& rest = operands.rests[span];
    KVLANE_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const std::uint32_t codes = operands.codes[span].w[i / 2];
      const std::uint32_t a[4] = {m[0].w[i], m[1].w[i], m[0].w[i + 1], m[1].w[i + 1]};
      t.mma_fp16(d, a, rest.w[i], rest.w[i + 1]);
      t.mma_fp16(d, a, pair_of_codes(codes, 0), pair_of_codes(codes, 2));
    }
  }
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    shared.base[place.row + i / 2 * 8][2 * place.column + i % 2] = kMore * d[i];
  }
}

// Page i of a run.
template <int kHeads, int kDim, int kKeyBits, int kValueBits, class Thread>
KVLANE_DEVICE void attend_page_by_both(Thread& t, Place place, int i,
                                       const HackPages<kDim, kKeyBits, kValueBits>& shared,
                                       WarpState<kDim>& state) {
  using Copy = HackPageCopy<kDim, kKeyBits, kValueBits>;
  const Copy& copy = shared.copies[i % 2];
  Keys<kDim, kKeyBits> keys;
  take_keys(copy, place, keys);
  Words2 key_scales[kHalves], value_scales[kHalves];
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    key_scales[h] = take_numbers(copy.numbers, place, h);
    value_scales[h] = take_numbers(copy.numbers + Copy::kScales + Copy::kMeans, place, h);
  }
  Words4 queries[kDim / kSpan];
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) queries[span] = shared.queries[span][t.lane()];
  const Floats4 heads = shared.heads[t.lane()];
  const float* const base = shared.base[i] + 2 * place.column;
  Scores scores;
  score_by_both<kHeads>(t, keys, queries, {heads.x[2], heads.x[3]}, {base[0], base[1]}, key_scales,
                        scores);
  Weights weights;
  weigh_by_both<kHeads>(t, {heads.x[0], heads.x[1]}, value_scales, scores, state, weights);
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    Values<kValueBits> values;
    take_values(copy, place, q, values);
    add_values_by_both<kHeads>(t, values, take_numbers(copy.numbers + Copy::kScales, place, q),
                               weights, state.out[q]);
  }
  add_middle<kHeads, kValueBits>(t, weights, state);
}

// This warp's pages. Pages are on their way before what the launch in front makes is waited for.
template <int kHeads, int kDim, int kKeyBits, int kValueBits, bool kWhole, class Thread>
KVLANE_DEVICE void attend_pages_by_both(Thread& t, const HackDecodeBatch& batch,
                                        const DecodeUnit& unit, Place place,
                                        HackPages<kDim, kKeyBits, kValueBits>& shared,
                                        WarpState<kDim>& state) {
  const auto shape = page_shape<kDim, kKeyBits, kValueBits, kWhole>(batch.layout, batch.head_dim);
  const DecodeUnit here = unit;  // read at once
  const std::byte* const pages = batch.slabs + here.kv_head * batch.layout.bytes;
  const int first = here.first_token / kBlockTokens + t.warp();
  const std::int32_t* ids =
      batch.tables + (std::size_t(here.sequence) * batch.table_stride + first);
  const int count = (here.end_token / kBlockTokens - first + kDecodeWarps - 1) / kDecodeWarps;
  if (count <= 0) return;
  const int own = t.lane() % kHackWarpPages;
  const std::uint32_t id = ids[own < count ? kDecodeWarps * own : 0];
  const auto page_of = [&](int i) { return pages + t.shuffle(id, i) * batch.block_bytes; };
  // What this warp waits for first is asked for first: pages keep memory busy.
  Operands<kDim> operands;
  load_means({page_of(place.row) + shape.k_metadata, page_of(place.row + 8) + shape.k_metadata},
             count > 8, shape.head_dim, place, operands);
  copy_page(t, page_of(0), shape, shared.copies[0]);
  if (count > 1) fetch_bytes_ahead(t, page_of(1), unsigned(batch.layout.bytes));
  t.wait_previous();
  load_operands<kHeads>(batch, here, shape.head_dim, place, operands);
  share_operands(t, operands, place, shared);
  KVLANE_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    t.wait_copies();
    t.sync_warp();  // what all have copied is there, and all have read the page before
    if (i + 1 < count) copy_page(t, page_of(i + 1), shape, shared.copies[(i + 1) % 2]);
    attend_page_by_both<kHeads>(t, place, i, shared, state);
  }
  t.sync_warp();  // all have read what outputs are written over
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (i % 2 < kHeads) state.out[q][i / 4][i % 4] -= state.middle[i % 2];
    }
  }
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    state.sum[n] = decode::sum_of_rows(t, state.sum[n]);
    state.max[n] = decode::max_of_rows(t, state.max[n]);
  }
}

}  // namespace hack_decode
}  // namespace kvlane
