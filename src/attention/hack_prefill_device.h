// Prefill attention on codes (spec/hack.md) for kernels: one block of threads takes a tile of (row,
// query head) pairs of one KV head over all sealed pages that they see, and leaves a partial state
// a pair, with which the kernel of rows goes on (attention/prefill_device.h). Formulas:
// attention/hack_page.h.
//
// A page's codes are unpacked once for all pairs, to shared memory: as signed bytes c' = 2 c - top,
// top being the largest code, so what is about the middle of codes vanishes. Products run on the
// matrix unit in 8 bits with pairs as rows; warp w has the rows 16 kTiles w ... of the tile:
//   scores      S[16 pairs][8 tokens] = Q K^T: both operands come by load_matrices. Tile (h, o)
//               has the tokens 32 h + 8 column + 2 o, + 1 in a lane's two columns
//   weights     in 8 bits, so: the tiles (h, e) and (h, 2 + e) are register 2 h + e of the next
//               operand, in the lane that has them: that is the order of tokens in words of V
//   output      O[16 pairs][8 channels] += P V: words of V become rows [channel][register], of
//               which a lane takes the four tokens of its class
// By both axes K has besides what all scores of a page share, (sum of q m): a product in 16 bits
// for eight pages at once, which are its columns. All sums of integers begin at 1.5 * 2^23, so that
// their bits are those of a float: nothing has to be converted.
//
// Pieces of 16 bytes lie in shared memory so that 8 of them that one access takes are in all banks:
// see place_of_key() and place_of_value().
//
// A pair's sums run over its pages in order, one page a step; a page that it does not see weighs 0
// for it and moves nothing. So its bits do not depend on the other pairs of the tile, nor on how a
// prompt is cut.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_weights_device.h"

namespace kvlane {
namespace hack_prefill {

// Eight rows of states: through shared memory, to be mixed back by whole warps and stored. Row i
// is of the query rows[i], if it is not negative.
template <class Thread, int kDim>
KVLANE_DEVICE void store_rows(Thread& t, const HackPrefillBatch& batch, const std::int32_t* rows,
                              float (&states)[8][kDim]) {
  KVLANE_NO_UNROLL
  for (int row = 0; row < 8 && rows[row] >= 0; ++row) {
    float out[kDim / kWarpThreads];
    KVLANE_UNROLL
    for (int i = 0; i < kDim / kWarpThreads; ++i) {
      out[i] = states[row][(kWarpThreads * i + t.lane()) ^ row % 4 * 8];
    }
    mix_row(t, batch.mix, out);
    KVLANE_UNROLL
    for (int i = 0; i < kDim / kWarpThreads; ++i) {
      const int channel = kWarpThreads * i + t.lane();
      if (channel < batch.head_dim) {
        batch.out[std::size_t(rows[row]) * batch.head_dim + channel] = out[i];
      }
    }
  }
}

template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void store_states(Thread& t, const HackPrefillBatch& batch,
                                const Outputs<kDim, kTiles>& out,
                                HackPrefillShared<kDim, kTiles>& shared) {
  const int own = t.lane() / 4, column = t.lane() % 4;
  float(&states)[8][kDim] = shared.out[t.warp()];
  KVLANE_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int tile = i / 2, half = i % 2;
    const int pair = pair_of<kTiles>(t, tile, half);
    KVLANE_UNROLL
    for (int part = 0; part < kDim / 8; ++part) {
      float* const to = states[own] + ((8 * part + 2 * column) ^ own % 4 * 8);
      to[0] = out.of[tile][part][2 * half];
      to[1] = out.of[tile][part][2 * half + 1];
    }
    const std::int32_t row = shared.rows[pair];
    if (column == 0 && row >= 0) {
      const float sum = shared.sum[pair];
      batch.max[row] = sum == 0 ? minus_infinity() : shared.max[pair];
      batch.sum[row] = sum;
    }
    t.sync_warp();
    store_rows(t, batch, shared.rows + (pair - own), states);
    t.sync_warp();
  }
}

}  // namespace hack_prefill

// By all threads of a block of kPrefillWarps warps. kDim is at least batch.head_dim, shared.kPairs
// at least unit.pairs, which is at least 1; `pages` is shared memory of
// hack_prefill_pages_bytes(). kPartition is
// that of the pages: of K, and of V where it is at most 64; 0: by both.
template <int kDim, int kTiles, int kPartition, class Thread>
KVLANE_DEVICE void attend_coded_tile(Thread& t, const HackPrefillBatch& batch,
                                     const PrefillUnit& unit,
                                     HackPrefillShared<kDim, kTiles>& shared, gpu::Words4* pages) {
  using namespace hack_prefill;
  constexpr bool kBoth = kPartition == 0;
  const int group = batch.heads / batch.kv_heads;
  if (t.index() == 0) {
    const int own = (prefill_tokens(unit, group) - 1) / kBlockTokens;  // of the last pair
    shared.ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
    shared.slabs = batch.slabs + unit.kv_head * batch.layout.bytes;
    shared.pages_end = own - batch.window.recent;
  }
  const int first = batch.window.sink;
  copy_queries(t, batch, unit, group, shared);
  share_pairs<kPartition>(t, batch, unit, group, shared);
  t.sync_block();
  if (first < shared.pages_end) copy_page(t, batch, shared, first, pages);
  Outputs<kDim, kTiles> out;
  KVLANE_UNROLL
  for (int i = 0; i < kTiles * kDim / 2; ++i) out.of[i / (kDim / 2)][i / 4 % (kDim / 8)][i % 4] = 0;
  KVLANE_NO_UNROLL
  for (int index = first; index < shared.pages_end; ++index) {
    const int page_words = static_cast<int>(batch.layout.bytes / sizeof(Words4));
    const int place = (index - first) % 2 * page_words;
    const Page page{pages + place, batch.head_dim, unsigned(batch.layout.k_metadata),
                    unsigned(batch.layout.v_metadata)};
    t.wait_copies();
    t.sync_block();
    unpack(t, batch, page, shared);
    if (index + 1 < shared.pages_end) {
      copy_page(t, batch, shared, index + 1, pages + (page_words - place));
    }
    if (kBoth && (index - first) % kPagesTogether == 0) {
      multiply_means<kTiles>(t, batch, index, shared);
    }
    t.sync_block();
    Scores<kTiles> scores;
    score<kPartition>(t, shared, page, float((1 << batch.key_bits) - 1), scores);
    Words4 scales[2];
    if (kBoth) load_scales(page, page.v_metadata, t.lane() % 4, scales);
    Weights<kTiles> weights;
    weigh<kBoth>(t, index, first, scales, shared, scores, out, weights);
    if constexpr (kBoth) {
      add_values_by_both(t, shared, page, weights, out);
    } else {
      add_values_by_channel<kPartition>(t, page, float((1 << batch.value_bits) - 1), weights,
                                        shared, out);
    }
  }
  t.wait_copies();
  t.sync_block();
  store_states(t, batch, out, shared);
}

}  // namespace kvlane
