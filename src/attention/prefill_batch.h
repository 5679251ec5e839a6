// What launches of prefill attention over 16-bit pages are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/kv_window.h"

namespace kvlane {

// Of a block of threads.
inline constexpr int kPrefillWarps = 4;
// Pairs that one tile of the matrix unit takes.
inline constexpr int kPrefillRows = 16;

// What units of a launch share. Pages, `q` and `out` begin at multiples of 16 bytes. K, V, queries
// and scores are finite; rows of pages behind a unit's last row are not read.
struct PrefillBatch {
  const std::int32_t* tables;  // [spans][table_stride]: the ids of a sequence's blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;    // a multiple of 8
  const std::byte* slabs;   // the layer's slab of block 0
  std::size_t block_bytes;  // from there to the slab of block 1
  const std::byte* q;       // [rows][heads][head_dim], BF16, RoPE applied
  float scale;              // of scores: log2(e) / sqrt(head_dim)
  std::byte* out;           // [rows][heads][head_dim], BF16; not `q`
};

// The states of sealed pages, of all pairs (attention/partial_state.h). Tables name rows for blocks
// of the window, and anything for others. Rows begin at multiples of 8 bytes.
struct SealedSeen {
  static constexpr bool kSome = true;
  KvWindow window;
  const float* max;  // [rows][heads]
  const float* sum;
  const float* out;  // [rows][heads][head_dim]
};

}  // namespace kvlane
