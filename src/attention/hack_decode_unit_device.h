// Decode attention on codes in kernels: what units of a launch share, what a block of threads has
// in shared memory, and how its warps' states become a unit's. What lies where and why:
// attention/hack_decode_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_decode_batch.h"
#include "attention/hack_weights_device.h"

namespace kvlane {

// Pages: what a warp has there while it computes; afterwards its outputs are in their place.
template <int kDim, class Pages>
struct HackDecodeShared {
  float max[kDecodeWarps][kDecodeColumns];
  float sum[kDecodeWarps][kDecodeColumns];
  union alignas(16) Warp {
    Pages pages;
    float out[kDecodeColumns][kDim];
  };
  Warp warps[kDecodeWarps];
};

namespace hack_decode {

using namespace gpu;
using decode::Place;

KVLANE_DEVICE std::size_t first_row(const HackDecodeBatch& batch, const DecodeUnit& unit) {
  return std::size_t(unit.sequence) * batch.heads + unit.first_head;
}

// Of the unit, the query that is column n of products, or kNoQuery: with two heads a lane query n,
// with one the columns of odd numbers have none.
inline constexpr int kNoQuery = kDecodeColumns;
template <int kHeads>
KVLANE_DEVICE int query_of_column(int n) {
  return kHeads == 2 ? n : n % 2 == 0 ? n / 2 : kNoQuery;
}

// Of a lane.
template <int kHeads>
KVLANE_DEVICE Heads load_heads(const HackDecodeBatch& batch, const DecodeUnit& unit, int column) {
  Heads heads{};
  KVLANE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    const bool there = kHeads * column + i < unit.queries;
    const std::size_t row = first_row(batch, unit) + kHeads * column + i;
    heads.scale[i] = there ? batch.queries.scales[row] : 0;
    heads.centre[i] = there ? batch.queries.terms[row * kHackTerms].centre : 0;
  }
  return heads;
}

template <int kHeads, int kDim>
KVLANE_DEVICE void load_queries(const HackDecodeBatch& batch, const DecodeUnit& unit, Place place,
                                Words4 (&codes)[kDim / kSpan]) {
  const int query = query_of_column<kHeads>(place.row);
  const std::size_t row = first_row(batch, unit) + query;
  KVLANE_UNROLL
  for (int span = 0; span < kDim / kSpan; ++span) {
    const int channel = kSpan * span + 16 * place.column;
    codes[span] = decode::load_if(query < unit.queries && channel < batch.head_dim,
                                  batch.queries.codes, row * batch.head_dim + channel);
  }
}

// Where four channels of a query are in shared memory: what lanes of two rows and four columns
// write at once is in all banks.
template <int kHeads>
KVLANE_DEVICE int place_of(int four, int query) {
  return four ^ (query / kHeads * 2);
}

// A warp's, whose lanes have read its pages; with kSeldom sums and outputs are beside `about`.
template <bool kSeldom, int kHeads, int kDim, class Pages, class Thread>
KVLANE_DEVICE void share_state(Thread& t, Place place, const WarpState<kDim>& state,
                               HackDecodeShared<kDim, Pages>& shared) {
  KVLANE_UNROLL
  for (int n = 0; n < kHeads; ++n) {
    const int query = kHeads * place.column + n;
    const bool above = kSeldom && state.max[n] > state.about[n];
    const float by = above ? power_of_two(state.about[n] - state.max[n]) : 1;
    if (place.row == 0) {
      shared.max[t.warp()][query] = state.max[n];
      shared.sum[t.warp()][query] = state.sum[n] * by;
    }
    KVLANE_UNROLL
    for (int q = 0; q < kDim / 32; ++q) {
      float* const at =
          shared.warps[t.warp()].out[query] + 4 * place_of<kHeads>(8 * q + place.row, query);
      const float(&out)[2][4] = state.out[q];
      store_floats(at, {{out[0][n] * by, out[0][n + 2] * by, out[1][n] * by, out[1][n + 2] * by}});
    }
  }
}

// A warp puts together one query's states, mixes them back, and writes them.
template <int kHeads, int kDim, class Pages, class Thread>
KVLANE_DEVICE void store_state(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                               int query, const HackDecodeShared<kDim, Pages>& shared) {
  float max = minus_infinity();
  KVLANE_UNROLL
  for (int w = 0; w < kDecodeWarps; ++w) max = larger(max, shared.max[w][query]);
  float sum = 0;
  float out[kDim / 32] = {};
  const int own = 4 * place_of<kHeads>(t.lane() / 4, query) + t.lane() % 4;
  KVLANE_UNROLL
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float by = decode::factor(shared.max[w][query], shared.sum[w][query], max);
    sum += shared.sum[w][query] * by;
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) {
      out[i] += shared.warps[w].out[query][own + kWarpThreads * i] * by;
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

// By all threads of the block, of which each warp has shared its state.
template <int kHeads, int kDim, class Pages, class Thread>
KVLANE_DEVICE void store_states(Thread& t, const HackDecodeBatch& batch, const DecodeUnit& unit,
                                const HackDecodeShared<kDim, Pages>& shared) {
  t.sync_block();
  for (int query = t.warp(); query < unit.queries; query += kDecodeWarps) {
    store_state<kHeads>(t, batch, unit, query, shared);
  }
}

}  // namespace hack_decode

}  // namespace kvlane
