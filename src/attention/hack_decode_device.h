// Decode attention on codes (spec/hack.md) for kernels: one block of threads takes up to 8 query
// heads of one KV head over a range of one sequence's sealed pages, and leaves a partial state a
// head, of the same kind as attention/decode_device.h leaves them. Formulas: attention/hack_page.h.
//
// A warp takes whole pages. Products run on the matrix unit in 8 bits with tokens and channels as
// rows and query heads as columns; the order of dimensions within a sum and of items in rows is
// free, and chosen so that what a lane loads is its operand after a shift and a mask:
//   scores      S[16 tokens][8 heads] = K Q^T, four tiles a page. Lane (row, column) loads words of
//               the tokens 32 h + 4 row ... + 3, of channels 16 column ... + 15 of every 64: tile
//               (h, e) has token 32 h + 4 row + 2 e in `row` and the next one in row + 8
//   weights     where S leaves them, of tokens (h, e, row) for heads 2 column, + 1; in 8 bits, the
//               two tokens of a lane are a 16-bit value whose 8 x 8 transposition is register
//               2 h + e of the next operand: this is what defines the order of tokens in words of V
//   output      O[16 channels][8 heads] = V^T P^T. The lane loads words of channels
//               32 q + 4 row ... + 3 and class `column`; tile (q, e) as for tokens
// By both axes K has besides what all its scores share, (sum of q m): a product with the means of
// channels in 16 bits, in all rows alike, so that each lane finds its two heads' where it needs it.
//
// Bytes: a page is read once for 8 heads, at head_dim 128 and 2 bits 4,864 (by both; 5,120 with
// partitions of 64) for 64 tokens, 6.7 times less than in 16 bits. A unit leaves 4 (head_dim + 2)
// bytes a head. Products of the matrix unit a page: in 8 bits head_dim / 4 + 2 at 16 x 8 x 32, and
// by both head_dim / 8 at 16 x 8 x 16 in 16 bits. Codes of the next page of K and of this one's V
// are on their way while this one is computed (at head_dim 128 and 4 bits 8 KB a warp), or all
// lines of the next page on their way to the second-level cache. Means are multiplied from shared
// memory; scores, weights and codes never go there.
//
// Warp w has the pages w, w + 4 ... of the unit and a state of its own; at the end the four merge
// in shared memory in the order of warps, and where the format mixes channels the output is mixed
// back. No sum depends on time or on other heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_weights_device.h"

namespace kvlane {

// Whether a kernel asks memory for the next page instead of holding its codes: without them one
// more warp fits beside the others of a scheduler.
constexpr bool hack_decode_fetches_ahead(const HackKind& kind, int dim) {
  return dim == 128 && kind == HackKind{2, 2, 0};
}

// What units of a launch share. Slabs begin at multiples of 64 bytes, the rest as DecodeBatch has
// it. Tokens of units are multiples of 64: a page is sealed whole. Scales of K and V are not
// negative, which no encoder makes them; otherwise results are wrong, but nothing is read or
// written elsewhere.
struct HackDecodeBatch {
  const std::int32_t* tables;  // [sequences][table_stride]: the ids of a sequence's sealed blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;    // a multiple of 16
  const std::byte* slabs;   // the layer's sealed slab of block 0
  std::size_t block_bytes;  // from there to the slab of block 1
  hack::PageLayout layout;
  HackPrepared queries;  // of rows [sequences][heads]
  ChannelMix mix;
  // The partial states (attention/partial_state.h), written as units say.
  float* max;  // [states]
  float* sum;  // [states]
  float* out;  // [states][head_dim], not divided by the sum
};

template <int kDim>
struct HackDecodeShared {
  float max[kDecodeWarps][kDecodeColumns];
  float sum[kDecodeWarps][kDecodeColumns];
  alignas(16) float out[kDecodeWarps][kDecodeColumns][kDim];
  hack_decode::QueryParts<kDim> parts;  // by both
  HackTerm terms[kDecodeColumns][kHackTerms];
  gpu::Floats4 heads[gpu::kWarpThreads];  // by both, of each lane: its Heads
};

namespace hack_decode {

using namespace gpu;
using decode::Place;

KVLANE_DEVICE std::size_t first_row(const HackDecodeBatch& batch, const DecodeUnit& unit) {
  const int group = batch.heads / batch.kv_heads;
  return std::size_t(unit.sequence) * batch.heads + unit.kv_head * group + unit.first_query;
}

// By all threads of the block; columns without a head are 0. By token: terms.
template <int kDim, class Thread>
KVLANE_DEVICE void share_terms(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                               HackDecodeShared<kDim>& shared) {
  const HackTerm* const terms = batch.queries.terms + first_row(batch, unit) * kHackTerms;
  for (int i = t.index(); i < kDecodeColumns * kHackTerms; i += t.threads()) {
    HackTerm term{0, 0};
    if (i / kHackTerms < unit.queries) term = terms[i];
    shared.terms[i / kHackTerms][i % kHackTerms] = term;
  }
}
// Of the heads 2 column, + 1.
KVLANE_DEVICE Heads load_heads(const HackDecodeBatch& batch, const DecodeUnit& unit, int column) {
  Heads heads;
  KVLANE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const bool there = 2 * column + i < unit.queries;
    const std::size_t row = first_row(batch, unit) + 2 * column + i;
    heads.scale[i] = there ? batch.queries.scales[row] : 0;
    heads.centre[i] = there ? batch.queries.terms[row * kHackTerms].centre : 0;
  }
  return heads;
}

// By both: operands for means, and what scores are multiplied with.
template <int kDim, class Thread>
KVLANE_DEVICE void share_parts(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                               HackDecodeShared<kDim>& shared) {
  const std::size_t first = first_row(batch, unit);
  for (int i = t.index(); i < kDim / 32 * kWarpThreads; i += t.threads()) {
    const int query = i % kWarpThreads / 4;
    const int channel = i / kWarpThreads * 32 + i % 4 * 8;
    Words4 u{}, rest{};
    if (query < unit.queries && channel < batch.head_dim) {
      const std::size_t at = (first + query) * batch.head_dim + channel;
      const Words2 codes = load_pair(batch.queries.codes + at);
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) u.w[j] = pair_of_codes(codes.w[j / 2], j % 2 * 2);
      rest = load_once(batch.queries.rests + 2 * at);
    }
    shared.parts.of[0][i / kWarpThreads][i % kWarpThreads] = u;
    shared.parts.of[1][i / kWarpThreads][i % kWarpThreads] = rest;
  }
  if (t.warp() != 0) return;
  const Heads heads = load_heads(batch, unit, t.lane() % 4);
  shared.heads[t.lane()] = {{heads.scale[0], heads.scale[1], heads.centre[0], heads.centre[1]}};
}

template <int kDim>
KVLANE_DEVICE void load_queries(const HackDecodeBatch& batch, const DecodeUnit& unit, Place place,
                                Words4 (&codes)[kDim / kSpan]) {
  const std::size_t first = first_row(batch, unit);
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) {
    const int channel = kSpan * span + 16 * place.column;
    codes[span] =
        decode::load_if(place.row < unit.queries && channel < batch.head_dim, batch.queries.codes,
                        (first + place.row) * batch.head_dim + channel);
  }
}

// What of a page's V lanes have in registers. Scales and means by both; the latter of channels
// 32 q + 4 row ... + 3.
template <int kDim, int kBits, bool kBoth>
struct PageValues {
  Values<kBits> codes[kDim / 32];
  Words2 means[kBoth ? kDim / 32 : 1];
};
template <int kDim, int kBits, bool kBoth>
KVLANE_DEVICE void load_page_values(const std::byte* page, const HackDecodeBatch& batch,
                                    Place place, PageValues<kDim, kBits, kBoth>& values) {
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    load_values(page + batch.layout.v_codes, batch.head_dim, q, place, values.codes[q]);
    if (!kBoth) continue;
    const int channel = 32 * q + 4 * place.row;
    values.means[q] = Words2{};
    if (channel < batch.head_dim) {
      values.means[q] = load_pair(page + batch.layout.v_metadata + 2 * channel);
    }
  }
}

// By both: scales of the tokens 32 h + 4 row ... + 3.
KVLANE_DEVICE void load_scales(const std::byte* metadata, int head_dim, Place place,
                               Words2 (&scales)[kHalves]) {
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    scales[h] = load_pair(metadata + hack::scales_offset(head_dim) + 64 * h + 8 * place.row);
  }
}

// This warp's pages.
template <int kDim, int kKeyBits, int kValueBits, int kPartition, class Thread>
KVLANE_DEVICE void attend_pages(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                                Place place, const HackDecodeShared<kDim>& shared,
                                WarpState<kDim>& state) {
  constexpr bool kBoth = kPartition == 0;
  const int end = unit.end_token / kBlockTokens;
  int page = unit.first_token / kBlockTokens + t.warp();
  if (page >= end) return;
  const std::int32_t* ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
  const std::byte* pages = batch.slabs + unit.kv_head * batch.layout.bytes;
  const int head_dim = batch.head_dim;
  Words4 queries[kDim / kSpan];
  load_queries<kDim>(batch, unit, place, queries);
  Heads heads;
  if (!kBoth) heads = load_heads(batch, unit, place.column);
  // What fits into registers beside all else. Where more warps are worth more, memory is asked for
  // the next page's lines.
  constexpr bool kFetchesAhead =
      hack_decode_fetches_ahead({kKeyBits, kValueBits, kPartition}, kDim);
  constexpr bool kKeysAhead = !kFetchesAhead && kDim * kKeyBits <= 256;
  constexpr bool kValuesAhead =
      !kFetchesAhead && kDim * kValueBits <= (kPartition == 32 ? 256 : 512);
  std::int32_t id = ids[page];
  const std::byte* at = pages + id * batch.block_bytes;
  std::int32_t next = page + kDecodeWarps < end ? ids[page + kDecodeWarps] : 0;
  Keys<kDim, kKeyBits> keys;
  if (kKeysAhead) load_keys(at, head_dim, place, keys);
  KVLANE_NO_UNROLL
  for (; page < end; page += kDecodeWarps) {
    if (kFetchesAhead) at = pages + id * batch.block_bytes;
    if (!kKeysAhead) load_keys(at, head_dim, place, keys);
    const std::byte* const of_keys = at + batch.layout.k_metadata;
    const std::byte* const of_values = at + batch.layout.v_metadata;
    PageValues<kDim, kValueBits, kBoth> values;
    if (kValuesAhead) load_page_values(at, batch, place, values);
    Words2 value_scales[kHalves];
    Scores scores;
    if constexpr (kBoth) {
      Words2 key_scales[kHalves];
      load_scales(of_keys, head_dim, place, key_scales);
      load_scales(of_values, head_dim, place, value_scales);
      float base[2];
      add_means(t, of_keys, head_dim, shared.parts, place, base);
      const Floats4 own = shared.heads[t.lane()];
      heads = {{own.x[0], own.x[1]}, {own.x[2], own.x[3]}};
      score_by_both(t, keys, queries, heads, base, key_scales, scores);
    } else {
      score_by_token<kDim, kKeyBits, kPartition>(t, of_keys, head_dim, keys, queries, heads,
                                                 shared.terms, place, scores);
    }
    if (!kValuesAhead) load_page_values(at, batch, place, values);
    id = next;
    if (!kFetchesAhead) at = pages + id * batch.block_bytes;
    if (page + 2 * kDecodeWarps < end) next = ids[page + 2 * kDecodeWarps];
    if (kFetchesAhead && page + kDecodeWarps < end) {
      fetch_bytes_ahead(t, pages + id * batch.block_bytes, unsigned(batch.layout.bytes));
    }
    if (kKeysAhead && page + kDecodeWarps < end) load_keys(at, head_dim, place, keys);
    Weights weights;
    weigh<kDim, kBoth>(t, value_scales, scores, state, weights);
    if constexpr (kBoth) {
      add_values_by_both(t, values.codes, values.means, weights, state);
    } else {
      add_values_by_channel<kDim, kValueBits, kPartition>(t, of_values, head_dim, place,
                                                          values.codes, weights, state);
    }
  }
}

template <int kDim, class Thread>
KVLANE_DEVICE void share_state(Thread& t, Place place, const WarpState<kDim>& state,
                               HackDecodeShared<kDim>& shared) {
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int query = 2 * place.column + n;
    if (place.row == 0) {
      shared.max[t.warp()][query] = state.max[n];
      shared.sum[t.warp()][query] = state.sum[n];
    }
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      float* const at = shared.out[t.warp()][query] + 32 * q + 4 * place.row;
      store_floats(at, {{state.out[q][0][n], state.out[q][0][n + 2], state.out[q][1][n],
                         state.out[q][1][n + 2]}});
    }
  }
}

// A warp puts together one query's states, mixes them back, and writes them.
template <int kDim, class Thread>
KVLANE_DEVICE void store_state(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                               int query, const HackDecodeShared<kDim>& shared) {
  float max = minus_infinity();
  KVLANE_UNROLL
  for (int w = 0; w < kDecodeWarps; ++w) max = larger(max, shared.max[w][query]);
  float sum = 0;
  float out[kDim / 32] = {};
  KVLANE_UNROLL
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float by = decode::factor(shared.max[w][query], shared.sum[w][query], max);
    sum += shared.sum[w][query] * by;
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) {
      out[i] += shared.out[w][query][kWarpThreads * i + t.lane()] * by;
    }
  }
  mix_row(t, batch.mix, out);
  const std::size_t at = unit.first_state + query;
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    if (channel < batch.head_dim) batch.out[at * batch.head_dim + channel] = out[i];
  }
  if (t.lane() == 0) {
    batch.max[at] = max;
    batch.sum[at] = sum;
  }
}

}  // namespace hack_decode

// By all threads of a block of kDecodeWarps warps. kDim is at least batch.head_dim, kDecodeColumns
// at least unit.queries, and the page is of the kind. A unit without tokens leaves states of no
// tokens.
template <int kDim, int kKeyBits, int kValueBits, int kPartition, class Thread>
KVLANE_DEVICE void attend_coded_unit(Thread& t, const HackDecodeBatch& batch,
                                     const DecodeUnit& unit, HackDecodeShared<kDim>& shared) {
  const decode::Place place{t.lane() / 4, t.lane() % 4};
  hack_decode::WarpState<kDim> state;
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    state.max[n] = gpu::minus_infinity();
    state.sum[n] = 0;
  }
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) state.out[q][i / 4][i % 4] = 0;
  }
  if constexpr (kPartition == 0) {
    hack_decode::share_parts(t, batch, unit, shared);
  } else {
    hack_decode::share_terms(t, batch, unit, shared);
  }
  t.sync_block();
  hack_decode::attend_pages<kDim, kKeyBits, kValueBits, kPartition>(t, batch, unit, place, shared,
                                                                    state);
  hack_decode::share_state(t, place, state, shared);
  t.sync_block();
  for (int query = t.warp(); query < unit.queries; query += kDecodeWarps) {
    hack_decode::store_state(t, batch, unit, query, shared);
  }
}

}  // namespace kvlane
