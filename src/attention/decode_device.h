// Decode attention over 16-bit pages for kernels: one block of threads takes some query heads of
// one KV head over a range of one sequence, reads its pages once, and leaves a partial state a
// head.
//
// Products run on the matrix unit with tokens and channels as rows and query heads as columns, so 1
// to 8 heads cost the same. The order of dimensions within a sum is free, and so is which channel
// is which row; they are chosen so that 16 consecutive bytes that a lane loads, of K, of V or of a
// query, are operands as they are: nothing goes through shared memory.
//   scores      S[16 tokens][8 heads] = K Q^T: lane (row, column) loads dimensions 8 column ... + 7
//               of every 32, of the tokens `row` and `row + 8`, and the same of query head `row`
//   weights     of (tokens row, row + 8; heads 2 column, + 1), where S leaves them; rounded to
//               bfloat16, two 8 x 8 transpositions make them the operand of the next product
//   output      O[channels][8 heads] += V^T P^T: the lane loads channels 8 row ... + 7 of every 64,
//               of the tokens 2 column, + 1, + 8, + 9; byte_perm makes pairs of tokens
// Warp w has the tokens 16 w ... 16 w + 15 of every page and a state of its own; at the end the
// four merge in shared memory in the order of warps. No sum depends on time or on other heads.
//
// A token costs 4 head_dim bytes of memory traffic a KV head, a unit about 4 (head_dim + 2) a head
// for its state, which the merge reads again. K of the next 16 tokens and V of these are on their
// way together: at head_dim 128 8 KB a warp, 96 KB a multiprocessor with 12 of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/decode_batch.h"
#include "format/shape.h"
#include "gpu/device_float.h"
#include "plan/decode_units.h"

namespace kvlane {

template <int kDim, int kTiles>
struct DecodeShared {
  float max[kDecodeWarps][kTiles * kDecodeColumns];
  float sum[kDecodeWarps][kTiles * kDecodeColumns];
  alignas(16) float out[kDecodeWarps][kTiles * kDecodeColumns][kDim];
};

namespace decode {

using namespace gpu;

inline constexpr int kTile = 16;  // tokens

// Which part of a matrix the thread has: see gpu/device_float.h.
struct Place {
  int row, column;
};

// Operands as they come from memory; kDim is head_dim rounded up to 64, 128 or 256.
template <int kDim>
struct Keys {
  Words4 of[kDim / 32][2];  // tokens row, row + 8
};
template <int kDim>
struct Values {
  Words4 of[kDim / 64][4];  // tokens 2 column, + 1, + 8, + 9
};
template <int kDim, int kTiles>
struct Queries {
  Words4 of[kTiles][kDim / 32];
};

// A warp's: of its 16 tokens of every page so far. Entries of max and sum are for the heads
// 2 column, + 1 of each tile; `sum` is of this lane's tokens alone until share().
template <int kDim, int kTiles>
struct WarpState {
  float max[kTiles][2];
  float sum[kTiles][2];
  float out[kTiles][kDim / 16][4];
};

// Offset is as narrow as it can be: registers are scarce.
template <class Offset>
KVLANE_DEVICE Words4 load_if(bool wanted, const std::byte* base, Offset at) {
  Words4 words{};
  if (wanted) words = load_once(base + at);
  return words;
}

// `tile` is the K row of the first of `tokens` tokens; what is beyond them or beyond head_dim is 0.
template <int kDim>
KVLANE_DEVICE void load_keys(const std::byte* tile, unsigned row_bytes, int tokens, Place place,
                             Keys<kDim>& keys) {
  KVLANE_UNROLL
  for (int span = 0; span < kDim / 32; ++span) {
    const unsigned at = 64 * span + 16 * place.column;
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int token = place.row + 8 * half;
      keys.of[span][half] = load_if(at < row_bytes && token < tokens, tile, token * row_bytes + at);
    }
  }
}

// The same of V rows.
template <int kDim>
KVLANE_DEVICE void load_values(const std::byte* tile, unsigned row_bytes, int tokens, Place place,
                               Values<kDim>& values) {
  KVLANE_UNROLL
  for (int span = 0; span < kDim / 64; ++span) {
    const unsigned at = 128 * span + 16 * place.row;
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = 2 * place.column + i % 2 + i / 2 * 8;
      values.of[span][i] = load_if(at < row_bytes && token < tokens, tile, token * row_bytes + at);
    }
  }
}

// Columns without a head are 0.
template <int kDim, int kTiles>
KVLANE_DEVICE void load_queries(const DecodeBatch& batch, const DecodeUnit& unit, Place place,
                                Queries<kDim, kTiles>& queries) {
  const unsigned row_bytes = 2 * batch.head_dim;
  const std::size_t first = std::size_t(unit.sequence) * batch.heads + unit.first_head;
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const int query = tile * kDecodeColumns + place.row;
    KVLANE_UNROLL
    for (int span = 0; span < kDim / 32; ++span) {
      const unsigned at = 64 * span + 16 * place.column;
      queries.of[tile][span] = load_if(at < row_bytes && query < unit.queries, batch.q,
                                       (first + query) * row_bytes + at);
    }
  }
}

// The largest of what the lanes of this column have.
template <class Thread>
KVLANE_DEVICE float max_of_rows(Thread& t, float x) {
  KVLANE_UNROLL
  for (int by = 4; by < kWarpThreads; by *= 2) {
    x = larger(x, float_of(t.shuffle(bits_of(x), t.lane() ^ by)));
  }
  return x;
}
template <class Thread>
KVLANE_DEVICE float sum_of_rows(Thread& t, float x) {
  KVLANE_UNROLL
  for (int by = 4; by < kWarpThreads; by *= 2) {
    x += float_of(t.shuffle(bits_of(x), t.lane() ^ by));
  }
  return x;
}

// Scores of 16 tokens, of which `tokens` exist, in units of log2.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void score(Thread& t, const Keys<kDim>& keys, const Queries<kDim, kTiles>& queries,
                         float scale, int tokens, Place place, float (&scores)[kTiles][4]) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) scores[tile][i] = 0;
    KVLANE_UNROLL
    for (int step = 0; step < kDim / 16; ++step) {
      const Words4(&k)[2] = keys.of[step / 2];
      const Words4& q = queries.of[tile][step / 2];
      const int word = step % 2 * 2;
      t.mma_bf16(scores[tile], {k[0].w[word], k[1].w[word], k[0].w[word + 1], k[1].w[word + 1]},
                 q.w[word], q.w[word + 1]);
    }
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool there = place.row + i / 2 * 8 < tokens;
      scores[tile][i] = there ? scores[tile][i] * scale : minus_infinity();
    }
  }
}

// Scores become weights, and the state moves to the new maximum.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void weigh(Thread& t, float (&scores)[kTiles][4], WarpState<kDim, kTiles>& state) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    float keep[2];
    bool moved = false;
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float low = scores[tile][i], high = scores[tile][i + 2];
      const float old = state.max[tile][i];
      const float seen = max_of_rows(t, low > high ? low : high);
      const float max = seen > old ? seen : old;
      moved = moved || max != old;
      keep[i] = power_of_two(old - max);
      state.max[tile][i] = max;
      scores[tile][i] = power_of_two(low - max);
      scores[tile][i + 2] = power_of_two(high - max);
      state.sum[tile][i] = state.sum[tile][i] * keep[i] + (scores[tile][i] + scores[tile][i + 2]);
    }
    // Seldom, after the first pages.
    if (t.ballot(moved) == 0) continue;
    KVLANE_UNROLL
    for (int row = 0; row < kDim / 16; ++row) {
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) state.out[tile][row][i] *= keep[i % 2];
    }
  }
}

template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void add_values(Thread& t, const Values<kDim>& values,
                              const float (&weights)[kTiles][4], WarpState<kDim, kTiles>& state) {
  std::uint32_t first[kTiles], second[kTiles];  // tokens 0 ... 7, 8 ... 15
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const float(&w)[4] = weights[tile];
    first[tile] = t.transposed(pack_bf16(w[0], w[1]));
    second[tile] = t.transposed(pack_bf16(w[2], w[3]));
  }
  KVLANE_UNROLL
  for (int row = 0; row < kDim / 16; ++row) {
    const Words4(&v)[4] = values.of[row / 4];
    const int word = row % 4;
    constexpr std::uint32_t kLow = 0x5410, kHigh = 0x7632;
    const std::uint32_t pairs[4] = {
        byte_perm(v[0].w[word], v[1].w[word], kLow), byte_perm(v[0].w[word], v[1].w[word], kHigh),
        byte_perm(v[2].w[word], v[3].w[word], kLow), byte_perm(v[2].w[word], v[3].w[word], kHigh)};
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      t.mma_bf16(state.out[tile][row], pairs, first[tile], second[tile]);
    }
  }
}

// The channel of the first two entries of out[tile][row]; the others are of the next one.
KVLANE_DEVICE int channel_of(int row, Place place) {
  return row / 4 * 64 + 8 * place.row + row % 4 * 2;
}

// This warp's tokens of all pages.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void attend_pages(Thread& t, const DecodeBatch& batch, const DecodeUnit& unit,
                                Place place, WarpState<kDim, kTiles>& state) {
  const int first = unit.first_token + kTile * t.warp();
  if (first >= unit.end_token) return;
  const int pages = (unit.end_token - 1 - first) / kBlockTokens + 1;
  Queries<kDim, kTiles> queries;
  load_queries(batch, unit, place, queries);

  const unsigned row_bytes = 2 * batch.head_dim;
  const std::int32_t* ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride +
                            unit.first_token / kBlockTokens;
  const std::byte* keys_at = batch.slabs +
                             std::size_t(unit.kv_head) * 2 * kBlockTokens * row_bytes +
                             kTile * t.warp() * row_bytes;
  const unsigned to_values = kBlockTokens * row_bytes;
  // With the widest heads K and V together do not fit into registers.
  constexpr bool kAhead = kDim <= 128;
  int left = unit.end_token - first;  // of these 16 tokens and those of later pages
  std::size_t page = ids[0] * batch.block_bytes;
  std::int32_t next = pages > 1 ? ids[1] : 0;
  Keys<kDim> keys;
  if (kAhead) load_keys(keys_at + page, row_bytes, left, place, keys);
  KVLANE_NO_UNROLL
  for (int i = 0; i < pages; ++i, left -= kBlockTokens) {
    Values<kDim> values;
    float scores[kTiles][4];
    if (!kAhead) load_keys(keys_at + page, row_bytes, left, place, keys);
    if (kAhead) load_values(keys_at + page + to_values, row_bytes, left, place, values);
    score(t, keys, queries, batch.scale, left, place, scores);
    if (!kAhead) load_values(keys_at + page + to_values, row_bytes, left, place, values);
    page = next * batch.block_bytes;
    if (i + 2 < pages) next = ids[i + 2];
    if (kAhead && i + 1 < pages) {
      load_keys(keys_at + page, row_bytes, left - kBlockTokens, place, keys);
    }
    weigh(t, scores, state);
    add_values(t, values, scores, state);
  }
}

template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void share(Thread& t, Place place, const WarpState<kDim, kTiles>& state,
                         DecodeShared<kDim, kTiles>& shared) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int query = tile * kDecodeColumns + 2 * place.column + i;
      const float sum = sum_of_rows(t, state.sum[tile][i]);
      if (place.row == 0) {
        shared.max[t.warp()][query] = state.max[tile][i];
        shared.sum[t.warp()][query] = sum;
      }
      KVLANE_UNROLL
      for (int row = 0; row < kDim / 16; ++row) {
        float* at = shared.out[t.warp()][query] + channel_of(row, place);
        at[0] = state.out[tile][row][i];
        at[1] = state.out[tile][row][i + 2];
      }
    }
  }
}

// What a state is to be multiplied with when the common maximum is `max`.
KVLANE_DEVICE float factor(float own_max, float own_sum, float max) {
  return own_sum == 0 ? 0 : power_of_two(own_max - max);
}

template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void store_states(Thread& t, const DecodeBatch& batch, const DecodeUnit& unit,
                                const DecodeShared<kDim, kTiles>& shared) {
  const int parts = batch.head_dim / 4;  // of a row, of 4 channels each
  for (int i = t.index(); i < unit.queries * parts; i += t.threads()) {
    const int query = i / parts, channel = i % parts * 4;
    float max = minus_infinity();
    KVLANE_UNROLL
    for (int w = 0; w < kDecodeWarps; ++w) {
      max = shared.max[w][query] > max ? shared.max[w][query] : max;
    }
    float sum = 0;
    Floats4 out{};
    KVLANE_UNROLL
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float by = factor(shared.max[w][query], shared.sum[w][query], max);
      const Floats4 own = load_floats(shared.out[w][query] + channel);
      sum += shared.sum[w][query] * by;
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) out.x[j] += own.x[j] * by;
    }
    const std::size_t at = unit.first_state + query;
    store_floats(batch.out + at * batch.head_dim + channel, out);
    if (channel == 0) {
      batch.max[at] = max;
      batch.sum[at] = sum;
    }
  }
}

}  // namespace decode

// By all threads of a block of kDecodeWarps warps. kDim is at least batch.head_dim, kTiles * 8 at
// least unit.queries. A unit without tokens leaves states of no tokens.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void attend_unit(Thread& t, const DecodeBatch& batch, const DecodeUnit& unit,
                               DecodeShared<kDim, kTiles>& shared) {
  const decode::Place place{t.lane() / 4, t.lane() % 4};
  decode::WarpState<kDim, kTiles> state;
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int i = 0; i < 2; ++i) {
      state.max[tile][i] = gpu::minus_infinity();
      state.sum[tile][i] = 0;
    }
    KVLANE_UNROLL
    for (int row = 0; row < kDim / 16; ++row) {
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) state.out[tile][row][i] = 0;
    }
  }
  decode::attend_pages(t, batch, unit, place, state);
  decode::share(t, place, state, shared);
  t.sync_block();
  decode::store_states(t, batch, unit, shared);
}

}  // namespace kvlane
