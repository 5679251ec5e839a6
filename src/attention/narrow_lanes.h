// Pages of few channels with vectors of any width. For files of one instruction-set tier only.
//
// Scores: lanes are tokens, kRows rows and kWide vectors of tokens at a time. Output: lanes are
// channels, tokens are added two by two. Bytes: 128 (k + v) a page. Operations: 128 (k + v) a row.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/narrow_page.h"
#include "attention/prefetch.h"

// Templates are instantiated with types that only one file knows, so each has code of its own.
namespace kvlane::narrow_lanes {

using Scores = float[kTileRows][kBlockTokens];

// Of kRows rows and all tokens.
template <class V, int kRows>
static inline void score_rows(const NarrowItem& item, int row, Prefetch& prefetch, Scores& scores) {
  for (int token = 0; token < kBlockTokens; token += V::kTokens * V::kLanes) {
    typename V::Floats sum[kRows][V::kTokens];
    for (auto& of_row : sum) {
      for (auto& lanes : of_row) lanes = V::zero();
    }
    const std::uint16_t* words = item.page + 2 * token;
    for (int channel = 0; channel < item.dims.k; channel += 2, words += 2 * kBlockTokens) {
      typename V::Pair keys[V::kTokens];
#pragma GCC unroll 4
      for (int i = 0; i < V::kTokens; ++i) {
        keys[i] = V::widen(words + 2 * V::kLanes * i);
        if (i % V::kLoadsOfLine == 0) prefetch.line();
      }
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) {
        const auto first = V::all(item.q[row + j][channel]);
        const auto second = V::all(item.q[row + j][channel + 1]);
#pragma GCC unroll 4
        for (int i = 0; i < V::kTokens; ++i) {
          sum[j][i] = V::multiply_add(first, keys[i].low, sum[j][i]);
          sum[j][i] = V::multiply_add(second, keys[i].high, sum[j][i]);
        }
      }
    }
    for (int j = 0; j < kRows; ++j) {
      for (int i = 0; i < V::kTokens; ++i) {
        V::store(&scores[row + j][token + V::kLanes * i], sum[j][i]);
      }
    }
  }
}

// kWide vectors of channels of kRows rows: out * keep + weights x V.
template <class V, int kRows, int kWide>
static inline void add_channels(const NarrowItem& item, int row, int channel, const Scores& weights,
                                const float* keep, Prefetch& prefetch) {
  const int v = item.dims.v;
  typename V::Floats sum[kRows][kWide];
  for (auto& of_row : sum) {
    for (auto& lanes : of_row) lanes = V::zero();
  }
  const std::uint16_t* words = item.page + kBlockTokens * item.dims.k + 2 * channel;
  for (int token = 0; token < kBlockTokens; token += 2, words += 2 * v) {
    typename V::Pair values[kWide];
#pragma GCC unroll 4
    for (int i = 0; i < kWide; ++i) {
      values[i] = V::widen(words + 2 * V::kLanes * i);
      if (i % V::kLoadsOfLine == 0) prefetch.line();
    }
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      const auto first = V::all(weights[row + j][token]);
      const auto second = V::all(weights[row + j][token + 1]);
#pragma GCC unroll 4
      for (int i = 0; i < kWide; ++i) {
        sum[j][i] = V::multiply_add(first, values[i].low, sum[j][i]);
        sum[j][i] = V::multiply_add(second, values[i].high, sum[j][i]);
      }
    }
  }
  for (int j = 0; j < kRows; ++j) {
    const auto factor = V::all(keep[row + j]);
    float* const out = item.tile->out + (row + j) * v + channel;
    for (int i = 0; i < kWide; ++i) {
      float* const at = out + V::kLanes * i;
      V::store(at, V::multiply_add(V::load(at), factor, sum[j][i]));
    }
  }
}

template <class V, int kRows>
static inline void add_rows(const NarrowItem& item, int row, const Scores& weights,
                            const float* keep, Prefetch& prefetch) {
  const int v = item.dims.v;
  int channel = 0;
  const auto left = [&] { return (v - channel) / V::kLanes; };
  for (; left() >= V::kChannels; channel += V::kLanes * V::kChannels) {
    add_channels<V, kRows, V::kChannels>(item, row, channel, weights, keep, prefetch);
  }
  if constexpr (V::kChannels > 2) {
    for (; left() >= 2; channel += V::kLanes * 2) {
      add_channels<V, kRows, 2>(item, row, channel, weights, keep, prefetch);
    }
  }
  for (; left() >= 1; channel += V::kLanes) {
    add_channels<V, kRows, 1>(item, row, channel, weights, keep, prefetch);
  }
}

template <class V>
static inline void attend(const NarrowItem& item) {
  StateTile& tile = *item.tile;
  alignas(64) Scores scores;  // then weights
  float keep[kTileRows];
  Prefetch prefetch(item.next);
  const int whole_rows = tile.rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) score_rows<V, 4>(item, row, prefetch, scores);
  for (int row = whole_rows; row < tile.rows; ++row) score_rows<V, 1>(item, row, prefetch, scores);
  for (int row = 0; row < tile.rows; ++row) {
    keep[row] = V::weigh(scores[row], tile.max[row], tile.sum[row]);
  }
  for (int row = 0; row < whole_rows; row += 4) {
    add_rows<V, 4>(item, row, scores, keep, prefetch);
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    add_rows<V, 1>(item, row, scores, keep, prefetch);
  }
  prefetch.rest();  // the next page may be wider
}

}  // namespace kvlane::narrow_lanes
