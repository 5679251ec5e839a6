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
// By both axes K has besides what all its scores share, (sum of q m), and V the sum of all weights
// times the means of its channels: products in 16 bits, see attention/hack_decode_both_device.h.
//
// Bytes: a page is read once for 8 heads, at head_dim 128 and 2 bits 4,864 (by both; 5,120 with
// partitions of 64) for 64 tokens, 6.7 times less than in 16 bits. A unit leaves 4 (head_dim + 2)
// bytes a head. Products of the matrix unit a page: in 8 bits head_dim / 4 + 2 at 16 x 8 x 32, and
// by both head_dim / 16 at 16 x 8 x 8 in 16 bits. By both the next page is on its way to shared
// memory while this one is computed; by token codes of the next page of K and of this one's V are
// on their way to registers (at head_dim 128 and 4 bits 8 KB a warp). Scores and weights never
// leave registers.
//
// Warp w has the pages w, w + 4 ... of the unit and a state of its own; at the end the four merge
// in shared memory in the order of warps, and where the format mixes channels the output is mixed
// back. No sum depends on time or on other heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "attention/hack_decode_both_device.h"

namespace kvlane {

// A warp's by token: of its queries.
struct HackDecodeTerms {
  HackTerm of[kDecodeColumns][kHackTerms];
};

// What a kernel's warps have in shared memory.
template <int kDim, int kKeyBits, int kValueBits, int kPartition>
using HackDecodeMemory = HackDecodeShared<
    kDim,
    std::conditional_t<kPartition == 0, HackPages<kDim, kKeyBits, kValueBits>, HackDecodeTerms>>;

namespace hack_decode {

// By a warp; columns without a head are 0.
template <class Thread>
KVLANE_DEVICE void share_terms(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                               HackDecodeTerms& shared) {
  const HackTerm* const terms = batch.queries.terms + first_row(batch, unit) * kHackTerms;
  for (int i = t.lane(); i < kDecodeColumns * kHackTerms; i += kWarpThreads) {
    HackTerm term{0, 0};
    if (i / kHackTerms < unit.queries) term = terms[i];
    shared.of[i / kHackTerms][i % kHackTerms] = term;
  }
}
// This warp's pages by token. What fits into registers beside all else is loaded a page ahead.
template <int kDim, int kKeyBits, int kValueBits, int kPartition, class Thread>
KVLANE_DEVICE void attend_pages_by_token(Thread& t, const HackDecodeBatch& batch,
                                         const DecodeUnit& unit, Place place,
                                         const HackDecodeTerms& terms, WarpState<kDim>& state) {
  const int head_dim = batch.head_dim;
  const int end = unit.end_token / kBlockTokens;
  int page = unit.first_token / kBlockTokens + t.warp();
  if (page >= end) return;
  const std::int32_t* ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
  const std::byte* pages = batch.slabs + unit.kv_head * batch.layout.bytes;
  Words4 queries[kDim / kSpan];
  load_queries<2, kDim>(batch, unit, place, queries);
  const Heads heads = load_heads<2>(batch, unit, place.column);
  constexpr bool kKeysAhead = kDim * kKeyBits <= 256;
  constexpr bool kValuesAhead = kDim * kValueBits <= (kPartition == 32 ? 256 : 512);
  const std::byte* at = pages + ids[page] * batch.block_bytes;
  std::int32_t next = page + kDecodeWarps < end ? ids[page + kDecodeWarps] : 0;
  Keys<kDim, kKeyBits> keys;
  if (kKeysAhead) load_keys(at, head_dim, place, keys);
  KVLANE_NO_UNROLL
  for (; page < end; page += kDecodeWarps) {
    if (!kKeysAhead) load_keys(at, head_dim, place, keys);
    const std::byte* const of_values = at + batch.layout.v_metadata;
    Values<kValueBits> values[kDim / 32];
    const auto load_all_values = [&] {
      KVLANE_UNROLL
      for (int q = 0; q < kDim / 32; ++q)
        load_values(at + batch.layout.v_codes, head_dim, q, place, values[q]);
    };
    if (kValuesAhead) load_all_values();
    Scores scores;
    score_by_token<kDim, kKeyBits, kPartition>(t, at + batch.layout.k_metadata, head_dim, keys,
                                               queries, heads, terms.of, place, scores);
    if (!kValuesAhead) load_all_values();
    at = pages + next * batch.block_bytes;
    if (page + 2 * kDecodeWarps < end) next = ids[page + 2 * kDecodeWarps];
    if (kKeysAhead && page + kDecodeWarps < end) load_keys(at, head_dim, place, keys);
    Weights weights;
    weigh_by_channel(t, scores, state, weights);
    add_values_by_channel<kDim, kValueBits, kPartition>(t, of_values, head_dim, place, values,
                                                        weights, state);
  }
}

}  // namespace hack_decode

// By all threads of a block of kDecodeWarps warps, for a page of the kind. kDim is at least
// batch.head_dim, and the same if kWhole; 4 kHeads is at least unit.queries, and kHeads is 2 by
// token; a unit by both has up to kDecodeWarps * kHackWarpPages pages. A unit without tokens leaves
// states of no tokens. Batch, unit, tables and pages are there before the launch in front of this
// one, which may make the queries, has ended.
template <int kDim, int kKeyBits, int kValueBits, int kPartition, bool kWhole, int kHeads,
          class Thread>
KVLANE_DEVICE void attend_coded_unit(
    Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
    HackDecodeMemory<kDim, kKeyBits, kValueBits, kPartition>& shared) {
  const decode::Place place{t.lane() / 4, t.lane() % 4};
  hack_decode::WarpState<kDim> state;
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    state.max[n] = gpu::minus_infinity();
    state.about[n] = gpu::minus_infinity();
    state.sum[n] = 0;
    state.middle[n] = 0;
  }
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) state.out[q][i / 4][i % 4] = 0;
  }
  auto& own = shared.warps[t.warp()].pages;
  if constexpr (kPartition == 0) {
    hack_decode::attend_pages_by_both<kHeads, kDim, kKeyBits, kValueBits, kWhole>(
        t, batch, unit, place, own, state);
  } else {
    t.wait_previous();
    hack_decode::share_terms(t, batch, unit, own);
    t.sync_warp();
    hack_decode::attend_pages_by_token<kDim, kKeyBits, kValueBits, kPartition>(t, batch, unit,
                                                                               place, own, state);
    t.sync_warp();
  }
  t.wait_previous();  // of a warp without pages, too
  hack_decode::share_state<kPartition == 0, kHeads>(t, place, state, shared);
  hack_decode::store_states<kHeads>(t, batch, unit, shared);
}

}  // namespace kvlane
