// Prefill attention over 16-bit pages for kernels: one block of threads takes a tile of (row, query
// head) pairs of one KV head over all tokens that they see, page after page, and writes their rows
// of the result.
//
// The tile's queries lie in shared memory, K and V of a page follow each other there: while the
// scores of a page are made its V is on the way, while its V is added the next page's K. Products
// run on the matrix unit with pairs as rows; warp w has the rows 16 kTiles w ... of the tile, and
// scores and weights never leave its registers:
//   scores      S[16 pairs][8 tokens] = Q K^T: both operands come by load_matrices
//   weights     lie in S as the next product wants them, and are rounded to bfloat16 in place
//   output      O[16 pairs][8 channels] += P V: V is transposed on its way by load_transposed
// A row of a tile in shared memory is pieces of 16 bytes, piece p of row r in place p ^ r % 8: so 8
// rows' pieces of one number are in all banks, as loads of matrices want them, and 8 pieces of one
// row too, as copies do.
//
// A pair's sums run over the pages in the order of the sequence, and over the tokens of a page in
// that of the matrix unit; where a page has tokens that the pair does not see, they weigh 0. So its
// bits depend on its own sequence alone: not on the other pairs of the tile nor on how a prompt is
// cut into spans. Warps without pairs work as others do: what all of a block decide alike costs
// fewer registers.
//
// In a coded cache sealed pages come first, in a kernel of their own
// (attention/hack_prefill_device.h): what it leaves is where a pair's state begins, and the pages
// here are those of its window alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/prefill_batch.h"
#include "format/shape.h"
#include "gpu/device_float.h"
#include "plan/prefill_units.h"

namespace kvlane {

// What is known of the rows before: nothing, and all their tokens are in pages of rows.
struct NothingSeen {
  static constexpr bool kSome = false;
};

// kDim is head_dim rounded up to 64, 128 or 256, kTiles the tiles of the matrix unit that a warp
// has.
template <int kDim, int kTiles>
struct PrefillShared {
  static constexpr int kPieces = kDim / 8;
  static constexpr int kPairs = kPrefillWarps * kTiles * kPrefillRows;
  alignas(128) gpu::Words4 queries[kPairs][kPieces];  // in the end results, rounded
  gpu::Words4 keys[kBlockTokens][kPieces];
  gpu::Words4 values[kBlockTokens][kPieces];
};

namespace prefill {

using namespace gpu;

// A warp's. Entries of max are for the rows lane / 4 and lane / 4 + 8 of each tile, in units of
// log2. Sums are the output of a V of ones, all columns of them the same: the rounded weights are
// what is added, here as there.
template <int kDim, int kTiles>
struct WarpState {
  float max[kTiles][2];
  float sum[kTiles][4];
  float out[kTiles][kDim / 8][4];
};

// As operands: of the warp's pairs, in parts of 16 dimensions. Those of the narrowest heads fit
// into registers beside all else; others come from shared memory for every page.
template <int kDim, int kTiles>
struct Queries {
  static constexpr bool kStay = kDim <= 64;
  std::uint32_t of[kDim / 16][kTiles][4];
};

// Of 16 kTiles pairs and a page's tokens, in parts of 8.
template <int kTiles>
struct Scores {
  float of[kTiles][kBlockTokens / 8][4];
};
// Their weights, in parts of 16 tokens.
template <int kTiles>
struct Weights {
  std::uint32_t of[kTiles][kBlockTokens / 16][4];
};

// Where the lane's row of four matrices is: of a tile of 16 rows and 2 pieces. Matrices follow each
// other down the rows first (queries as rows, values), or along the pieces first (keys).
template <int kPieces>
KVLANE_DEVICE unsigned place_down(unsigned lane) {
  return lane % 16 * kPieces + (lane / 16 ^ lane % 8);
}
template <int kPieces>
KVLANE_DEVICE unsigned place_along(unsigned lane) {
  return (lane / 16 * 8 + lane % 8) * kPieces + (lane / 8 % 2 ^ lane % 8);
}
// From there to the tile that is `right` tiles further along the pieces: what is added to the
// number of a piece is exclusive-ored to its place, within 8 pieces.
KVLANE_DEVICE unsigned move_right(unsigned place, unsigned right) {
  return (place ^ 2 * (right % 4)) + 8 * (right / 4);
}

// The lane's number, from an exchange: so the compiler works out addresses anew in every page,
// where it would keep them, and spill others.
template <class Thread>
KVLANE_DEVICE unsigned lane_anew(Thread& t) {
  return t.shuffle(t.lane(), t.lane());
}

// The number of pair `pair` of a unit among the rows of heads of `q` and `out`.
template <class Batch>
KVLANE_DEVICE std::size_t row_of(const Batch& batch, const PrefillUnit& unit, int group, int pair) {
  return std::size_t(unit.first_row + pair / group) * batch.heads + unit.kv_head * group +
         pair % group;
}

// Begins to copy the tile's queries; pairs and dimensions that are not there are 0.
template <class Thread, class Batch, int kDim, int kTiles>
KVLANE_DEVICE void copy_queries(Thread& t, const Batch& batch, const PrefillUnit& unit, int group,
                                PrefillShared<kDim, kTiles>& shared) {
  using Shared = PrefillShared<kDim, kTiles>;
  const unsigned row_bytes = 2 * batch.head_dim;
  const int piece = t.index() % Shared::kPieces;
  constexpr int kRows = kPrefillWarps * kWarpThreads / Shared::kPieces;  // at one time
  KVLANE_NO_UNROLL
  for (int row = t.index() / Shared::kPieces; row < Shared::kPairs; row += kRows) {
    const bool wanted = row < unit.pairs && 16U * piece < row_bytes;
    const std::size_t from = wanted ? row_of(batch, unit, group, unit.first_pair + row) : 0;
    t.copy_async(shared.queries[row][piece ^ row % 8],
                 batch.q + from * row_bytes + (wanted ? 16U * piece : 0), wanted);
  }
}

// Begins to copy a page's K or V, of which `tokens` exist. All else is 0, also where it will weigh
// 0: memory may hold NaN there.
template <class Thread, int kPieces>
KVLANE_DEVICE void copy_tile(Thread& t, const std::byte* from, unsigned row_bytes, int tokens,
                             Words4 (&to)[kBlockTokens][kPieces]) {
  const unsigned index = t.index();
  const unsigned piece = index % kPieces;
  constexpr int kRows = kPrefillWarps * kWarpThreads / kPieces;  // at one time
  const bool inside = 16U * piece < row_bytes;
  unsigned row = index / kPieces;
  from += row * row_bytes + (inside ? 16U * piece : 0);
  KVLANE_UNROLL
  for (int i = 0; i < kBlockTokens / kRows; ++i, row += kRows, from += kRows * row_bytes) {
    t.copy_async(to[row][piece ^ row % 8], from, inside && int(row) < tokens);
  }
}

// Part `step` of the warp's queries.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void load_queries(Thread& t, const PrefillShared<kDim, kTiles>& shared, unsigned lane,
                                int step, Queries<kDim, kTiles>& queries) {
  constexpr int kPieces = kDim / 8;
  const Words4* const own = shared.queries[t.warp() * kTiles * kPrefillRows];
  const unsigned place = move_right(place_down<kPieces>(lane), step);
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    t.load_matrices(own[tile * kPrefillRows * kPieces + place], queries.of[step][tile]);
  }
}

// The scores of the warp's pairs, not scaled.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void score(Thread& t, const PrefillShared<kDim, kTiles>& shared,
                         Queries<kDim, kTiles>& queries, Scores<kTiles>& scores) {
  constexpr int kPieces = kDim / 8;
  const Words4* const keys = shared.keys[0];
  const unsigned lane = lane_anew(t), along = place_along<kPieces>(lane);
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int part = 0; part < kBlockTokens / 8; ++part) {
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) scores.of[tile][part][i] = 0;
    }
  }
  KVLANE_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    if (!queries.kStay) load_queries(t, shared, lane, step, queries);
    KVLANE_UNROLL
    for (int part = 0; part < kBlockTokens / 8; part += 2) {
      std::uint32_t k[4];
      t.load_matrices(keys[part * 8 * kPieces + move_right(along, step)], k);
      KVLANE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const std::uint32_t(&q)[4] = queries.of[step][tile];
        t.mma_bf16(scores.of[tile][part], q, k[0], k[1]);
        t.mma_bf16(scores.of[tile][part + 1], q, k[2], k[3]);
      }
    }
  }
}

// The pages of rows that a unit goes through: [0, sink), and [begin, end).
struct Pages {
  int sink, begin, end;
  KVLANE_DEVICE int first() const { return sink > 0 ? 0 : begin; }
  KVLANE_DEVICE int after(int page) const {
    return page + 1 >= sink && page + 1 < begin ? begin : page + 1;
  }
};
template <class Seen>
KVLANE_DEVICE Pages pages_of(const Seen& seen, const PrefillUnit& unit, int group, int tokens) {
  const int end = (tokens + kBlockTokens - 1) / kBlockTokens;
  if constexpr (Seen::kSome) {
    const int own = (unit.position + unit.first_pair / group) / kBlockTokens;
    const int begin = own > seen.window.recent ? own - seen.window.recent : 0;
    return {seen.window.sink < end ? seen.window.sink : end, begin, end};
  } else {
    return {0, 0, end};
  }
}

// Takes out what pairs do not see of page `page`.
template <class Thread, int kTiles, class Seen>
KVLANE_DEVICE void mask(Thread& t, const Seen& seen, const PrefillUnit& unit, int group, int page,
                        Scores<kTiles>& scores) {
  const int position = unit.position - page * kBlockTokens - t.lane() % 4 * 2;
  const int pair = unit.first_pair + t.warp() * kTiles * kPrefillRows + t.lane() / 4;
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = (pair + tile * kPrefillRows + half * 8) / group;
      int last = position + row;
      if constexpr (Seen::kSome) {
        const int own = (unit.position + row) / kBlockTokens;
        if (page >= seen.window.sink && page + seen.window.recent < own) last = -1;
      }
      KVLANE_UNROLL
      for (int part = 0; part < kBlockTokens / 8; ++part) {
        KVLANE_UNROLL
        for (int i = 0; i < 2; ++i) {
          float& score = scores.of[tile][part][2 * half + i];
          score = part * 8 + i <= last ? score : minus_infinity();
        }
      }
    }
  }
}

// Of what the lanes of this row have.
template <class Thread>
KVLANE_DEVICE float max_of_columns(Thread& t, float x) {
  KVLANE_UNROLL
  for (int by = 1; by < 4; by *= 2) {
    const float other = float_of(t.shuffle(bits_of(x), t.lane() ^ by));
    x = larger(x, other);
  }
  return x;
}
// Scores become weights, and the state moves to the new maximum.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void weigh(Thread& t, Scores<kTiles>& scores, float scale,
                         WarpState<kDim, kTiles>& state, Weights<kTiles>& weights) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    float keep[2];
    bool moved = false;
    float(&of)[kBlockTokens / 8][4] = scores.of[tile];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float seen = minus_infinity();
      KVLANE_UNROLL
      for (int part = 0; part < kBlockTokens / 8; ++part) {
        KVLANE_UNROLL
        for (int i = 0; i < 2; ++i) seen = larger(seen, of[part][2 * half + i]);
      }
      // After the first page there is a maximum: every pair sees the first token, or began above
      // minus infinity.
      seen = max_of_columns(t, seen) * scale;
      const float old = state.max[tile][half];
      const float max = larger(old, seen);
      moved = moved || max != old;
      keep[half] = power_of_two(old - max);
      state.max[tile][half] = max;
      KVLANE_UNROLL
      for (int part = 0; part < kBlockTokens / 8; ++part) {
        float(&pair)[4] = of[part];
        const float low = power_of_two(pair[2 * half] * scale - max);
        const float high = power_of_two(pair[2 * half + 1] * scale - max);
        weights.of[tile][part / 2][part % 2 * 2 + half] = pack_bf16(low, high);
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
KVLANE_DEVICE void add_values(Thread& t, const PrefillShared<kDim, kTiles>& shared,
                              const Weights<kTiles>& weights, WarpState<kDim, kTiles>& state) {
  constexpr int kPieces = kDim / 8;
  const Words4* const values = shared.values[0];
  const unsigned down = place_down<kPieces>(lane_anew(t));
  constexpr std::uint32_t kOnes = 0x3F803F80;
  KVLANE_UNROLL
  for (int step = 0; step < kBlockTokens / 16; ++step) {
    KVLANE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      t.mma_bf16(state.sum[tile], weights.of[tile][step], kOnes, kOnes);
    }
    KVLANE_UNROLL
    for (int part = 0; part < kDim / 8; part += 2) {
      std::uint32_t v[4];
      t.load_transposed(values[step * 16 * kPieces + move_right(down, part / 2)], v);
      KVLANE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        t.mma_bf16(state.out[tile][part], weights.of[tile][step], v[0], v[1]);
        t.mma_bf16(state.out[tile][part + 1], weights.of[tile][step], v[2], v[3]);
      }
    }
  }
}

// Results go where the warp's own queries were, and from there to memory 16 bytes at a time.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void store_rows(Thread& t, const PrefillBatch& batch, const PrefillUnit& unit,
                              int group, const WarpState<kDim, kTiles>& state,
                              PrefillShared<kDim, kTiles>& shared) {
  using Shared = PrefillShared<kDim, kTiles>;
  constexpr int kPairs = kTiles * kPrefillRows;  // the warp's
  const int first = t.warp() * kPairs;
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float scale = 1.0F / state.sum[tile][2 * half];
      const int row = t.lane() / 4 + half * 8;
      Words4* const to = shared.queries[first + tile * kPrefillRows + row];
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) {
        const float(&out)[4] = state.out[tile][part];
        // No zero has a sign: that of a product with 0 is a matter of tokens that weigh 0.
        to[part ^ row % 8].w[t.lane() % 4] =
            pack_bf16(out[2 * half] * scale + 0.0F, out[2 * half + 1] * scale + 0.0F);
      }
    }
  }
  t.sync_warp();
  const unsigned row_bytes = 2 * batch.head_dim;
  KVLANE_NO_UNROLL
  for (int i = t.lane(); i < kPairs * Shared::kPieces; i += kWarpThreads) {
    const int row = first + i / Shared::kPieces, piece = i % Shared::kPieces;
    if (row >= unit.pairs || 16U * piece >= row_bytes) continue;
    const std::size_t to = row_of(batch, unit, group, unit.first_pair + row);
    store_once(batch.out + to * row_bytes + 16U * piece, shared.queries[row][piece ^ row % 8]);
  }
}

// A maximum of no tokens that differences can be taken of.
KVLANE_DEVICE float lowest() { return float_of(0xFF7FFFFF); }

// The states that pairs begin with.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void load_states(Thread& t, const SealedSeen& seen, const PrefillBatch& batch,
                               const PrefillUnit& unit, int group, WarpState<kDim, kTiles>& state) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int pair = (t.warp() * kTiles + tile) * kPrefillRows + t.lane() / 4 + half * 8;
      const bool there = pair < unit.pairs;
      const std::size_t row = there ? row_of(batch, unit, group, unit.first_pair + pair) : 0;
      state.max[tile][half] = there ? larger(seen.max[row], lowest()) : lowest();
      const float sum = there ? seen.sum[row] : 0;
      state.sum[tile][2 * half] = state.sum[tile][2 * half + 1] = sum;
      const float* const out = seen.out + row * batch.head_dim;
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) {
        const int channel = part * 8 + t.lane() % 4 * 2;
        Words2 pair_of_out{};
        if (there && channel < batch.head_dim) {
          pair_of_out = load_pair(reinterpret_cast<const std::byte*>(out + channel));
        }
        state.out[tile][part][2 * half] = float_of(pair_of_out.w[0]);
        state.out[tile][part][2 * half + 1] = float_of(pair_of_out.w[1]);
      }
    }
  }
}

template <int kDim, int kTiles>
KVLANE_DEVICE void clear(WarpState<kDim, kTiles>& state) {
  KVLANE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) state.max[tile][half] = minus_infinity();
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) state.sum[tile][i] = 0;
    KVLANE_UNROLL
    for (int part = 0; part < kDim / 8; ++part) {
      KVLANE_UNROLL
      for (int i = 0; i < 4; ++i) state.out[tile][part][i] = 0;
    }
  }
}

}  // namespace prefill

// By all threads of a block of kPrefillWarps warps. kDim is at least batch.head_dim, shared.kPairs
// at least unit.pairs, which is at least 1.
template <int kDim, int kTiles, class Thread, class Seen = NothingSeen>
KVLANE_DEVICE void attend_tile(Thread& t, const PrefillBatch& batch, const PrefillUnit& unit,
                               PrefillShared<kDim, kTiles>& shared, const Seen& seen = {}) {
  using namespace prefill;
  const unsigned row_bytes = 2 * batch.head_dim;
  const unsigned head_at = unit.kv_head * 2 * kBlockTokens * row_bytes;
  const int group = batch.heads / batch.kv_heads;
  const int tokens = prefill_tokens(unit, group);
  const std::int32_t* const ids = batch.tables + std::size_t(unit.sequence) * batch.table_stride;
  const int whole = (unit.position + unit.first_pair / group + 1) / kBlockTokens;
  const Pages pages = pages_of(seen, unit, group, tokens);

  int page = pages.first();
  const int second = pages.after(page);
  std::int32_t id = ids[page], next = second < pages.end ? ids[second] : 0;
  copy_queries(t, batch, unit, group, shared);
  copy_tile(t, batch.slabs + id * batch.block_bytes + head_at, row_bytes,
            tokens - page * kBlockTokens, shared.keys);
  Queries<kDim, kTiles> queries;
  if (queries.kStay) {
    t.wait_copies();
    t.sync_block();
    KVLANE_UNROLL
    for (int step = 0; step < kDim / 16; ++step) {
      load_queries(t, shared, t.lane(), step, queries);
    }
  }
  WarpState<kDim, kTiles> state;
  if constexpr (Seen::kSome) {
    load_states(t, seen, batch, unit, group, state);
  } else {
    clear(state);
  }
  KVLANE_NO_UNROLL
  while (page < pages.end) {
    const int left = tokens - page * kBlockTokens;
    t.wait_copies();
    t.sync_block();
    copy_tile(t, batch.slabs + id * batch.block_bytes + head_at + kBlockTokens * row_bytes,
              row_bytes, left, shared.values);
    Scores<kTiles> scores;
    score(t, shared, queries, scores);  // cppcheck-suppress uninitvar ; this fills it
    t.wait_copies();
    t.sync_block();
    const int following = pages.after(page);
    if (following < pages.end) {
      id = next;
      const int later = pages.after(following);
      if (later < pages.end) next = ids[later];
      copy_tile(t, batch.slabs + id * batch.block_bytes + head_at, row_bytes,
                tokens - following * kBlockTokens, shared.keys);
    }
    if (Seen::kSome || page >= whole) mask(t, seen, unit, group, page, scores);
    Weights<kTiles> weights;
    weigh(t, scores, batch.scale, state, weights);
    add_values(t, shared, weights, state);
    page = following;
  }
  store_rows(t, batch, unit, group, state, shared);
}

}  // namespace kvlane
