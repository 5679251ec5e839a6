// Prefill attention over sealed pages of few channels (format `zack`, spec/slab_zack.md) for
// kernels: one block of threads takes a tile of (row, query head) pairs of one KV head over all
// sealed pages that they see, and leaves a partial state a pair, with which the kernel of rows goes
// on (attention/prefill_device.h, whose tiles and shared memory these are).
//
// Trip counts are those of the head's widths. Words of two values are operands as they are, so
// nothing is transposed: of 16 channels of K a lane takes the words of four consecutive tokens at
// a time, of V those of four channels.
//   scores      S[16 pairs][8 tokens] = Q K^T: tile (h, j) has the tokens 32 h + 4 i + j in its
//               columns i
//   weights     lie in S as the next product wants them: of a lane's tokens 32 h + 8 column ...
//               + 7 the tiles have one each, and two of them are a pair of V
//   output      O[16 pairs][8 channels] += P V: tile (q, j) has the channels 32 q + 4 i + j in its
//               columns i
// Units of 16 bytes lie in shared memory in their order, but with twice the number of a pair of
// channels (of four pairs of tokens) exclusive-ored to their last bits: so eight lanes' units are
// in all banks.
//
// A pair's sums run over its pages in order, one page a step; a page that it does not see weighs 0
// for it and moves nothing. So its bits do not depend on the other pairs of the tile, nor on how a
// prompt is cut.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/narrow_prefill_batch.h"
#include "attention/prefill_device.h"

namespace kvlane {

namespace narrow_prefill {

using namespace gpu;
using namespace prefill;

inline constexpr int kThreads = kPrefillWarps * kWarpThreads;

// Begins to copy a page's K: 8 units of 16 bytes a channel.
template <class Thread>
KVLANE_DEVICE void copy_keys(Thread& t, const std::byte* from, int k, Words4* to) {
  const int index = t.index(), swap = index / 16 % 4 * 2;
  from += sizeof(Words4) * index;
  KVLANE_NO_UNROLL
  for (int i = 0; i < k / 16; ++i, from += sizeof(Words4) * kThreads) {
    t.copy_async(to[kThreads * i + (index ^ swap)], from, true);
  }
}
// The same of V: v units for four pairs of tokens.
template <class Thread>
KVLANE_DEVICE void copy_values(Thread& t, const std::byte* from, int v, Words4* to) {
  KVLANE_NO_UNROLL
  for (int unit = t.index(); unit < v; unit += kThreads) {
    KVLANE_UNROLL
    for (int four = 0; four < kBlockTokens / 8; ++four) {
      const int at = four * v + unit;
      t.copy_async(to[at ^ four % 4 * 2], from + sizeof(Words4) * at, true);
    }
  }
}

// The scores of the warp's pairs, not scaled: of[tile][4 h + j].
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void score(Thread& t, const PrefillShared<kDim, kTiles>& shared, int k,
                         Scores<kTiles>& scores) {
  constexpr int kPieces = kDim / 8;
  const unsigned lane = lane_anew(t), row = lane / 4, column = lane % 4;
  const Words4* const own = shared.queries[t.warp() * kTiles * kPrefillRows];
  const unsigned place = place_down<kPieces>(lane);
  const Words4* keys = shared.keys[0] + 16 * column + (row ^ 2 * column);
  KVLANE_UNROLL
  for (int i = 0; i < kTiles * kBlockTokens / 2; ++i) scores.of[i / 32][i / 4 % 8][i % 4] = 0;
  KVLANE_NO_UNROLL
  for (int step = 0; step < k / 16; ++step, keys += 128) {
    std::uint32_t queries[kTiles][4];
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      t.load_matrices(own[tile * kPrefillRows * kPieces + move_right(place, step)], queries[tile]);
    }
    KVLANE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const Words4 low = keys[8 * h], high = keys[64 + 8 * h];
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) {
        KVLANE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          t.mma_bf16(scores.of[tile][4 * h + j], queries[tile], low.w[j], high.w[j]);
        }
      }
    }
  }
}

// Takes page `page` out for pairs that do not see it.
template <class Thread, int kTiles>
KVLANE_DEVICE void mask(Thread& t, const NarrowPrefillBatch& batch, const PrefillUnit& unit,
                        int group, int page, Scores<kTiles>& scores) {
  const int pair = unit.first_pair + t.warp() * kTiles * kPrefillRows + t.lane() / 4;
  KVLANE_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int row = (pair + i * 8) / group;
    const int own = (unit.position + row) / kBlockTokens;
    const bool seen = page + batch.window.recent < own;
    KVLANE_UNROLL
    for (int part = 0; part < kBlockTokens / 8; ++part) {
      float(&of)[4] = scores.of[i / 2][part];
      of[i % 2 * 2] = seen ? of[i % 2 * 2] : minus_infinity();
      of[i % 2 * 2 + 1] = seen ? of[i % 2 * 2 + 1] : minus_infinity();
    }
  }
}

// Scores become weights, and the state moves to the new maximum.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void weigh(Thread& t, const Scores<kTiles>& scores, float scale,
                         WarpState<kDim, kTiles>& state, Weights<kTiles>& weights) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    float keep[2];
    bool moved = false;
    const float(&of)[kBlockTokens / 8][4] = scores.of[tile];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float seen = minus_infinity();
      KVLANE_UNROLL
      for (int part = 0; part < kBlockTokens / 8; ++part) {
        seen = larger(seen, larger(of[part][2 * half], of[part][2 * half + 1]));
      }
      const float old = state.max[tile][half];
      const float max = larger(old, max_of_columns(t, seen) * scale);
      moved = moved || max != old;
      keep[half] = power_of_two(old - max);
      state.max[tile][half] = max;
      KVLANE_UNROLL
      for (int i = 0; i < kBlockTokens / 16; ++i) {
        // Tokens 32 h + 8 column + 4 s + 0 ... 3, of the tiles j = 0 ... 3.
        const int h = i / 2, s = i % 2;
        float weight[4];
        KVLANE_UNROLL
        for (int j = 0; j < 4; ++j) {
          weight[j] = power_of_two(of[4 * h + j][2 * half + s] * scale - max);
        }
        weights.of[tile][i][half] = pack_bf16(weight[0], weight[1]);
        weights.of[tile][i][2 + half] = pack_bf16(weight[2], weight[3]);
      }
    }
    // Seldom, after the first pages.
    if (t.ballot(moved) == 0) continue;
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      state.sum[tile][i] *= keep[i / 2];
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) state.out[tile][part][i] *= keep[i / 2];
    }
  }
}

template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void add_values(Thread& t, const PrefillShared<kDim, kTiles>& shared, int v,
                              const Weights<kTiles>& weights, WarpState<kDim, kTiles>& state) {
  const unsigned lane = lane_anew(t), row = lane / 4, column = lane % 4;
  const Words4* const values = shared.values[0];
  constexpr std::uint32_t kOnes = 0x3F803F80;
  KVLANE_UNROLL
  for (int i = 0; i < kBlockTokens / 16; ++i) {
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      t.mma_bf16(state.sum[tile], weights.of[tile][i], kOnes, kOnes);
    }
  }
  KVLANE_UNROLL
  for (int i = 0; i < kBlockTokens / 16; ++i) {
    // Pairs of tokens 16 h + 4 column + 2 s, + 1.
    const unsigned first = (i / 2 * 16 + 4 * column + i % 2 * 2) * (v / 4) + row;
    const unsigned second = first + v / 4;
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      if (32 * q >= v) break;
      const Words4 low = values[(first + 8 * q) ^ 2 * column];
      const Words4 high = values[(second + 8 * q) ^ 2 * column];
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) {
        KVLANE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          t.mma_bf16(state.out[tile][4 * q + j], weights.of[tile][i], low.w[j], high.w[j]);
        }
      }
    }
  }
}

// Four lanes write 128 consecutive bytes of a pair's row.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void store_states(Thread& t, const NarrowPrefillBatch& batch, const PrefillUnit& unit,
                                int group, int v, const WarpState<kDim, kTiles>& state) {
  KVLANE_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int tile = i / 2, half = i % 2;
    const int pair = t.warp() * kTiles * kPrefillRows + 8 * i + t.lane() / 4;
    if (pair >= unit.pairs) continue;
    const std::size_t row = row_of(batch, unit, group, unit.first_pair + pair);
    const float sum = state.sum[tile][2 * half];
    if (t.lane() % 4 == 0) {
      batch.max[row] = sum == 0 ? minus_infinity() : state.max[tile][half];
      batch.sum[row] = sum;
    }
    float* const out = batch.out + row * batch.head_dim;
    int channel = t.lane() % 4 * 8;
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q, channel += 32) {
      if (channel >= batch.head_dim) break;
      const auto* const of = state.out[tile] + 4 * q;
      KVLANE_UNROLL
      for (int s = 0; s < 2; ++s) {
        const int at = 2 * half + s;
        Floats4 four{{of[0][at], of[1][at], of[2][at], of[3][at]}};
        if (channel >= v) four = {};
        store_floats(out + channel + 4 * s, four);
      }
    }
    KVLANE_NO_UNROLL
    for (; channel < batch.head_dim; channel += 32) {
      store_floats(out + channel, {});
      store_floats(out + channel + 4, {});
    }
  }
}

}  // namespace narrow_prefill

// By all threads of a block of kPrefillWarps warps. kDim is at least every width of the layer,
// shared.kPairs at least unit.pairs, which is at least 1.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void attend_narrow_tile(Thread& t, const NarrowPrefillBatch& batch,
                                      const PrefillUnit& unit,
                                      PrefillShared<kDim, kTiles>& shared) {
  namespace own = narrow_prefill;
  using namespace gpu;
  const int group = batch.heads / batch.kv_heads;
  const NarrowHead head = batch.pages[unit.kv_head];
  const std::byte* const slabs = batch.slabs + head.page;
  const std::int32_t* const ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
  // Own blocks of the first and the last pair.
  const int first_own = (unit.position + unit.first_pair / group) / kBlockTokens;
  const int last_own = (prefill_tokens(unit, group) - 1) / kBlockTokens;
  const int end = last_own - batch.window.recent;
  int page = batch.window.sink;
  std::int32_t id = page < end ? ids[page] : 0, next = page + 1 < end ? ids[page + 1] : 0;
  prefill::copy_queries(t, batch, unit, group, shared);
  if (page < end) own::copy_keys(t, slabs + id * batch.block_bytes, head.k, shared.keys[0]);
  prefill::WarpState<kDim, kTiles> state;
  prefill::clear(state);
  KVLANE_UNROLL
  for (int i = 0; i < 2 * kTiles; ++i) state.max[i / 2][i % 2] = prefill::lowest();
  KVLANE_NO_UNROLL
  for (; page < end; ++page) {
    t.wait_copies();
    t.sync_block();
    own::copy_values(t, slabs + id * batch.block_bytes + 2 * kBlockTokens * head.k, head.v,
                     shared.values[0]);
    prefill::Scores<kTiles> scores;
    own::score(t, shared, head.k, scores);
    t.wait_copies();
    t.sync_block();
    if (page + 1 < end) {
      id = next;
      if (page + 2 < end) next = ids[page + 2];
      own::copy_keys(t, slabs + id * batch.block_bytes, head.k, shared.keys[0]);
    }
    if (page + batch.window.recent >= first_own) {
      own::mask(t, batch, unit, group, page, scores);
    }
    prefill::Weights<kTiles> weights;
    own::weigh(t, scores, batch.scale, state, weights);
    own::add_values(t, shared, head.v, weights, state);
  }
  t.wait_copies();
  own::store_states(t, batch, unit, group, head.v, state);
}

}  // namespace kvlane
