// What launches of prefill attention over narrow pages are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/kv_window.h"
#include "format/narrow_head.h"

namespace kvlane {

// What units of a launch share. Slabs and rows of `q` and `out` begin at multiples of 16 bytes. K,
// V, queries and scores are finite.
struct NarrowPrefillBatch {
  const std::int32_t* tables;  // [spans][table_stride]: the ids of a sequence's sealed blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;    // of rows of `q` and `out`: a multiple of 16
  const std::byte* slabs;   // the layer's sealed slab of block 0
  std::size_t block_bytes;  // from there to the slab of block 1
  const NarrowHead* pages;  // [kv_heads]
  KvWindow window;          // the blocks that rows do not see sealed
  const std::byte* q;       // [rows][heads][head_dim], BF16, in the basis of the pages
  float scale;              // of scores: log2(e) / sqrt(head_dim)
  // The partial states of all pairs (attention/partial_state.h).
  float* max;  // [rows][heads]
  float* sum;  // [rows][heads]
  float* out;  // [rows][heads][head_dim], not divided by the sum; zeros behind a head's v
};

}  // namespace kvlane
