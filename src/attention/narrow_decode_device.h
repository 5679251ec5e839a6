// Decode attention over sealed pages of few channels (format `zack`, spec/slab_zack.md) for
// kernels: a block of threads takes the pieces of one machine of a plan (plan/narrow_decode_plan.h)
// one after another, reads each run of pages once for some query heads, and leaves a partial state
// a head and run, of the same kind as attention/decode_device.h leaves them.
//
// Each KV head has widths of its own, so trip counts are known at run time, and pages are a stream
// of groups: 16 channels of K, or 32 channels of V for half of a page's tokens, 2 KB either, in
// four asynchronous copies of 16 bytes a lane. A warp has the pages w, w + 4 ... of a run, and
// kNarrowStages groups on their way to shared memory, whatever the widths are. Operands are what a
// lane reads there:
//   scores      S[16 tokens][8 heads] = K Q^T: of 16 channels, lane (row, column) has the words of
//               channels 4 column ... + 3 of the tokens 32 h + 4 row ... + 3: tile (h, e) has token
//               32 h + 4 row + 2 e in `row` and the next one in row + 8
//   weights     of tokens (h, e, row) for heads 2 column, + 1, where S leaves them; rounded to
//               bfloat16. Four 8 x 8 transpositions a half and head tile, then byte_perm: the pairs
//               of tokens 32 h + 8 column + 2 i, + 1 for i = 0 ... 3
//   output      O[16 channels][8 heads] += V^T P^T: the lane has words of channels 32 q + 4 row
//               ... + 3 of those pairs of tokens, which are operands as they are; tile (q, e) as
//               for tokens
//
// Bytes: a token costs 2 (k + v) of memory traffic a KV head, read once for 8 kTiles query heads
// (again, mostly from the second-level cache, where a group has more). A run of 1,024 tokens leaves
// 4 (head_dim + 2) a query head, which the merge reads again: 2 % of its pages with k + v = 128,
// head_dim 128 and 4 heads. Products of 16 x 8 x 16 a page and tile of heads: (k + v) / 4, the
// latter rounded up to 32.
//
// At the end of a run the four warps merge in shared memory in their order. No sum depends on time,
// on the plan or on other heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/decode_device.h"
#include "attention/narrow_decode_batch.h"

namespace kvlane {

// Groups that a warp has on their way: 8 KB.
inline constexpr int kNarrowStages = 4;

// Four copies of each lane.
struct NarrowGroup {
  gpu::Words4 of[4][gpu::kWarpThreads];
};

template <int kDim, int kTiles>
struct NarrowDecodeShared {
  union {
    NarrowGroup groups[kDecodeWarps][kNarrowStages];
    // When all pages of a run are done; of one tile of heads after the other.
    gpu::Floats4 out[kDecodeWarps][kDecodeColumns][kDim / 4];
  };
  // Of 16 channels: those which the lane multiplies, 4 column ... + 3 of head `row`.
  gpu::Words2 queries[kTiles][kDim / 16][gpu::kWarpThreads];
  float max[kDecodeWarps][kDecodeColumns];
  float sum[kDecodeWarps][kDecodeColumns];
};

namespace narrow_decode {

using namespace gpu;
using decode::Place;

inline constexpr int kHalves = kBlockTokens / 32;  // of a page's tokens

// A run of pages, and the query heads that it is read for.
struct Run {
  const NarrowPiece* piece;
  std::int32_t k, v, page;  // as in the piece
  std::int32_t first_block, end_block;
  std::int32_t first_query, queries;  // of all heads
  std::int32_t first_state;           // of first_query
};

// A warp's: of its pages so far. Entries of max and sum are for the heads 2 column, + 1 of each
// tile; `sum` is of this lane's tokens alone until share().
template <int kDim, int kTiles>
struct WarpState {
  float max[kTiles][2];
  float sum[kTiles][2];
  float out[kTiles][kDim / 32][2][4];
};

// The weights of a page's tokens as operands: [half][pair of tokens].
template <int kTiles>
struct Weights {
  std::uint32_t of[kTiles][kHalves][4];
};

// Where a warp is in its pages: what is copied next, and into which stage; that is what is
// multiplied next, as soon as it is there.
struct Stream {
  const std::byte* slabs;  // of block 0: the head's page
  std::size_t block_bytes;
  const std::int32_t* ids;  // of the sequence's blocks
  const std::byte* page;    // that is being copied
  std::int32_t block, next_id;
  std::int32_t group;  // of the page
  std::int32_t stage;
};

// Where in a group the words of a place are: neither eight lanes that copy (a column) nor eight
// that read (two rows) meet in a bank.
KVLANE_DEVICE int slot_of(Place place) { return 8 * place.column + (place.row ^ 2 * place.column); }

template <class Thread>
KVLANE_DEVICE void begin_group(Thread& t, const Run& run, NarrowGroup& to, Stream& stream) {
  if (stream.block < run.end_block) {
    const std::int32_t of_keys = run.k / 16, groups = of_keys + (run.v + 31) / 32 * kHalves;
    const std::int32_t n = stream.group - of_keys;
    const bool is_key = n < 0;
    const std::int32_t pitch = 4 * run.v;  // of a pair of tokens
    // Eight lanes that follow each other copy 128 bytes that do: as few requests as there can be.
    const Place copied{t.lane() % 8, t.lane() / 8};
    const std::int32_t of_value = 2 * kBlockTokens * run.k +
                                  (16 * (n % kHalves) + 4 * copied.column) * pitch +
                                  n / kHalves * 128 + 16 * copied.row;
    const std::int32_t of_key = 2048 * stream.group + 512 * copied.column + 16 * copied.row;
    const std::byte* from = stream.page + (is_key ? of_key : of_value);
    const std::int32_t step = is_key ? 128 : pitch;
    const bool wanted = is_key || n / kHalves * 32 + 4 * copied.row < run.v;
    const int slot = slot_of(copied);
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i, from += step) t.copy_async(to.of[i][slot], from, wanted);
    if (++stream.group == groups) {
      stream.group = 0;
      stream.block += kDecodeWarps;
      stream.page = stream.slabs + stream.next_id * stream.block_bytes;
      if (stream.block + kDecodeWarps < run.end_block) {
        stream.next_id = stream.ids[stream.block + kDecodeWarps];
      }
    }
  }
  t.close_copies();
}

// The warp's first groups are on their way.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE Stream begin_pages(Thread& t, const NarrowDecodeBatch& batch, const Run& run,
                                 NarrowDecodeShared<kDim, kTiles>& shared) {
  Stream stream;
  stream.slabs = batch.slabs + run.page;
  stream.block_bytes = batch.block_bytes;
  stream.ids = batch.tables + std::size_t(run.piece->sequence) * batch.table_stride;
  stream.block = run.first_block + t.warp();
  stream.page = nullptr;
  stream.next_id = 0;
  stream.group = stream.stage = 0;
  if (stream.block < run.end_block) {
    stream.page = stream.slabs + stream.ids[stream.block] * stream.block_bytes;
  }
  if (stream.block + kDecodeWarps < run.end_block) {
    stream.next_id = stream.ids[stream.block + kDecodeWarps];
  }
  KVLANE_UNROLL
  for (int i = 0; i < kNarrowStages; ++i) {
    begin_group(t, run, shared.groups[t.warp()][i], stream);
  }
  return stream;
}

// The oldest group, which is waited for.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void take_group(Thread& t, Place place, const Stream& stream,
                              const NarrowDecodeShared<kDim, kTiles>& shared, Words4 (&words)[4]) {
  t.template wait_copies_but<kNarrowStages - 1>();
  t.sync_warp();
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    words[i] = shared.groups[t.warp()][stream.stage].of[i][slot_of(place)];
  }
}
// Behind the products with it: the next one takes its place.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void replace_group(Thread& t, const Run& run, Stream& stream,
                                 NarrowDecodeShared<kDim, kTiles>& shared) {
  t.sync_warp();
  begin_group(t, run, shared.groups[t.warp()][stream.stage], stream);
  stream.stage = (stream.stage + 1) % kNarrowStages;
}

// By all threads of the block; heads that are not there are 0.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void share_queries(Thread& t, const NarrowDecodeBatch& batch, const Run& run,
                                 NarrowDecodeShared<kDim, kTiles>& shared) {
  const std::size_t first = std::size_t(run.piece->sequence) * batch.heads + run.first_query;
  const int steps = run.k / 16;
  for (int i = t.index(); i < kTiles * steps * kWarpThreads; i += t.threads()) {
    const int lane = i % kWarpThreads, step = i / kWarpThreads % steps;
    const int tile = i / kWarpThreads / steps, query = tile * kDecodeColumns + lane / 4;
    Words2 words{};
    if (query < run.queries) {
      words =
          load_pair(batch.q + 2 * ((first + query) * batch.head_dim + 16 * step + lane % 4 * 4));
    }
    shared.queries[tile][step][lane] = words;
  }
}

// scores[tile][2 h + e], in units of log2.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void score(Thread& t, const Run& run, Place place, float scale, Stream& stream,
                         NarrowDecodeShared<kDim, kTiles>& shared, float (&scores)[kTiles][4][4]) {
  KVLANE_UNROLL
  for (int i = 0; i < kTiles * 16; ++i) scores[i / 16][i / 4 % 4][i % 4] = 0;
  KVLANE_NO_UNROLL
  for (int step = 0; step < run.k / 16; ++step) {
    Words4 words[4];  // [pair of channels][half]
    take_group(t, place, stream, shared, words);
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const Words2 q = shared.queries[tile][step][t.lane()];
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Words4 &low = words[i / 2], &high = words[2 + i / 2];
        const int word = i % 2 * 2;
        t.mma_bf16(scores[tile][i], {low.w[word], low.w[word + 1], high.w[word], high.w[word + 1]},
                   q.w[0], q.w[1]);
      }
    }
    replace_group(t, run, stream, shared);
  }
  KVLANE_UNROLL
  for (int i = 0; i < kTiles * 16; ++i) scores[i / 16][i / 4 % 4][i % 4] *= scale;
}

// Scores of a tile of heads become weights, and the state moves to the new maximum.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void weigh(Thread& t, int tile, float (&scores)[4][4],
                         WarpState<kDim, kTiles>& state) {
  float keep[2];
  bool moved = false;
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    float seen = larger(scores[0][n], scores[0][n + 2]);
    KVLANE_UNROLL
    for (int i = 1; i < 4; ++i) seen = larger(seen, larger(scores[i][n], scores[i][n + 2]));
    const float old = state.max[tile][n];
    const float max = larger(old, decode::max_of_rows(t, seen));
    moved = moved || max != old;
    keep[n] = power_of_two(old - max);
    state.max[tile][n] = max;
    float sum = 0;
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      scores[i][n] = power_of_two(scores[i][n] - max);
      scores[i][n + 2] = power_of_two(scores[i][n + 2] - max);
      sum += scores[i][n] + scores[i][n + 2];
    }
    state.sum[tile][n] = state.sum[tile][n] * keep[n] + sum;
  }
  // Seldom, after the first pages.
  if (t.ballot(moved) == 0) return;
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 4; ++i) state.out[tile][i / 8][i / 4 % 2][i % 4] *= keep[i % 2];
}

// Weights of a tile of heads as operands.
template <class Thread>
KVLANE_DEVICE void turn(Thread& t, const float (&weights)[4][4],
                        std::uint32_t (&pairs)[kHalves][4]) {
  constexpr std::uint32_t kLow = 0x5410, kHigh = 0x7632;
  KVLANE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    std::uint32_t of[4];  // of head `row`: tokens 32 h + 8 column + j and + 4 + j
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float* const w = weights[2 * h + j / 2] + j % 2 * 2;
      of[j] = t.transposed(pack_bf16(w[0], w[1]));
    }
    pairs[h][0] = byte_perm(of[0], of[1], kLow);
    pairs[h][1] = byte_perm(of[2], of[3], kLow);
    pairs[h][2] = byte_perm(of[0], of[1], kHigh);
    pairs[h][3] = byte_perm(of[2], of[3], kHigh);
  }
}

template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void add_values(Thread& t, const Run& run, Place place,
                              const Weights<kTiles>& weights, Stream& stream,
                              NarrowDecodeShared<kDim, kTiles>& shared,
                              WarpState<kDim, kTiles>& state) {
  KVLANE_UNROLL
  for (int q = 0; q < kDim / 32; ++q) {
    if (32 * q >= run.v) break;
    KVLANE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      Words4 words[4];  // pairs of tokens
      take_group(t, place, stream, shared, words);
      KVLANE_UNROLL
      for (int e = 0; e < 2; ++e) {
        KVLANE_UNROLL
        for (int s = 0; s < 4; s += 2) {
          const std::uint32_t a[4] = {words[s].w[2 * e], words[s].w[2 * e + 1],
                                      words[s + 1].w[2 * e], words[s + 1].w[2 * e + 1]};
          KVLANE_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            const auto& pairs = weights.of[tile][h];
            t.mma_bf16(state.out[tile][q][e], a, pairs[s], pairs[s + 1]);
          }
        }
      }
      replace_group(t, run, stream, shared);
    }
  }
}

// This warp's pages of the run.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void attend_pages(Thread& t, const NarrowDecodeBatch& batch, const Run& run,
                                Place place, NarrowDecodeShared<kDim, kTiles>& shared,
                                WarpState<kDim, kTiles>& state) {
  Stream stream = begin_pages(t, batch, run, shared);
  KVLANE_NO_UNROLL
  for (int block = run.first_block + t.warp(); block < run.end_block; block += kDecodeWarps) {
    float scores[kTiles][4][4];
    score(t, run, place, batch.scale, stream, shared, scores);
    Weights<kTiles> weights;
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      weigh(t, tile, scores[tile], state);
      turn(t, scores[tile], weights.of[tile]);
    }
    // cppcheck-suppress uninitvar ; the loop fills it
    add_values(t, run, place, weights, stream, shared, state);
  }
}

template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void share_state(Thread& t, Place place, int tile,
                               const WarpState<kDim, kTiles>& state,
                               NarrowDecodeShared<kDim, kTiles>& shared) {
  KVLANE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int query = 2 * place.column + n;
    const float sum = decode::sum_of_rows(t, state.sum[tile][n]);
    if (place.row == 0) {
      shared.max[t.warp()][query] = state.max[tile][n];
      shared.sum[t.warp()][query] = sum;
    }
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      const auto& out = state.out[tile][q];
      shared.out[t.warp()][query][8 * q + place.row] = {
          {out[0][n], out[0][n + 2], out[1][n], out[1][n + 2]}};
    }
  }
}

// By all threads of the block: the heads of a tile, four channels each a time.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void store_states(Thread& t, const NarrowDecodeBatch& batch, const Run& run, int tile,
                                const NarrowDecodeShared<kDim, kTiles>& shared) {
  const int parts = batch.head_dim / 4, first = tile * kDecodeColumns;
  for (int i = t.index(); i < kDecodeColumns * parts; i += t.threads()) {
    const int query = i / parts, part = i % parts;
    if (first + query >= run.queries) break;
    float max = minus_infinity();
    KVLANE_UNROLL
    for (int w = 0; w < kDecodeWarps; ++w) max = larger(max, shared.max[w][query]);
    float sum = 0;
    Floats4 out{};
    KVLANE_UNROLL
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float by = decode::factor(shared.max[w][query], shared.sum[w][query], max);
      sum += shared.sum[w][query] * by;
      if (part >= kDim / 4) continue;
      const Floats4 own = shared.out[w][query][part];
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) out.x[j] += own.x[j] * by;
    }
    const std::size_t at = run.first_state + first + query;
    store_floats(batch.out + at * batch.head_dim + 4 * part, out);
    if (part == 0) {
      batch.max[at] = max;
      batch.sum[at] = sum;
    }
  }
}

// By all threads of the block.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void attend_run(Thread& t, const NarrowDecodeBatch& batch, const Run& run,
                              NarrowDecodeShared<kDim, kTiles>& shared) {
  const Place place{t.lane() / 4, t.lane() % 4};
  WarpState<kDim, kTiles> state;
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int n = 0; n < 2; ++n) {
      state.max[tile][n] = minus_infinity();
      state.sum[tile][n] = 0;
    }
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 4; ++i) state.out[tile][i / 8][i / 4 % 2][i % 4] = 0;
  }
  share_queries(t, batch, run, shared);
  t.sync_block();
  attend_pages(t, batch, run, place, shared, state);
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile * kDecodeColumns >= run.queries) break;
    t.sync_block();  // nobody needs any more what is written now
    share_state(t, place, tile, state, shared);
    t.sync_block();
    store_states(t, batch, run, tile, shared);
  }
  t.sync_block();
}

}  // namespace narrow_decode

// By all threads of a block of kDecodeWarps warps: the pieces of machine `machine`. kDim is at
// least every width of the layer.
template <int kDim, int kTiles, class Thread>
KVLANE_DEVICE void attend_narrow_pieces(Thread& t, const NarrowDecodeBatch& batch, int machine,
                                        NarrowDecodeShared<kDim, kTiles>& shared) {
  const int group = batch.heads / batch.kv_heads;
  const std::int32_t end = batch.first[machine + 1];
  KVLANE_NO_UNROLL
  for (std::int32_t i = batch.first[machine]; i < end; ++i) {
    const NarrowPiece* const piece = batch.pieces + i;
    narrow_decode::Run run{.piece = piece, .k = piece->k, .v = piece->v, .page = piece->page};
    const std::int32_t end_block = piece->end_block;
    std::int32_t state = piece->first_state;
    KVLANE_NO_UNROLL
    for (std::int32_t block = piece->first_block; block < end_block; block += kNarrowRunBlocks) {
      run.first_block = block;
      run.end_block = block + kNarrowRunBlocks < end_block ? block + kNarrowRunBlocks : end_block;
      KVLANE_NO_UNROLL
      for (int query = 0; query < group; query += kTiles * kDecodeColumns) {
        const int left = group - query;
        run.first_query = piece->first_query + query;
        run.queries = left < kTiles * kDecodeColumns ? left : kTiles * kDecodeColumns;
        run.first_state = state + query;
        narrow_decode::attend_run(t, batch, run, shared);
      }
      state += batch.heads;
    }
  }
}

}  // namespace kvlane
