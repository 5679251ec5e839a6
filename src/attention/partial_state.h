// Partial attention: what is known of a softmax-weighted sum after some of the tokens.
//
// A kernel reads a run of blocks of one format and gives one state per query row; states of
// disjoint token sets merge by one associative rule. So sealed blocks, the query's own block,
// 16-bit windows and splits over threads need no combined kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

namespace kvlane {

inline constexpr int kTileHeadDimMax = 256;
// Query rows that share one pass over the pages of a KV head: (token, query head of the group)
// pairs.
inline constexpr int kTileRows = 16;

// The states of one tile. Scores are in units of log2: exp2(score - max) is a token's weight.
// Row i of `out` is at out + i * head_dim; it is the weighted sum of V rows, not yet divided by
// `sum`. head_dim is that of the V rows there are.
struct StateTile {
  int rows = 0;
  int head_dim = 0;
  alignas(64) float max[kTileRows];
  alignas(64) float sum[kTileRows];
  alignas(64) float out[kTileRows * kTileHeadDimMax];

  // The state of no tokens: the neutral element of merge().
  void reset(int row_count, int dim) {
    rows = row_count;
    head_dim = dim;
    for (int row = 0; row < rows; ++row) {
      max[row] = -std::numeric_limits<float>::infinity();
      sum[row] = 0;
    }
    for (int i = 0; i < rows * head_dim; ++i) out[i] = 0;
  }
};

// `into` becomes the state of both token sets. The same code on every tier, so that only kernels
// differ.
void merge(const StateTile& from, StateTile& into);

}  // namespace kvlane
