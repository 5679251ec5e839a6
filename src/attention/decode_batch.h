// What launches of decode attention over 16-bit pages are told, and those of the merge behind them,
// without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlane {

// Of a block of threads: 16 tokens of a page for each.
inline constexpr int kDecodeWarps = 4;
// Query heads that one tile of the matrix unit takes.
inline constexpr int kDecodeColumns = 8;

// What units of a launch share. Pages and `q` begin at multiples of 16 bytes, `out` too. K, V and
// scores are finite; rows of pages behind a sequence's last token are not read.
struct DecodeBatch {
  const std::int32_t* tables;  // [sequences][table_stride]: the ids of a sequence's blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;    // a multiple of 8
  const std::byte* slabs;   // the layer's slab of block 0
  std::size_t block_bytes;  // from there to the slab of block 1
  const std::byte* q;       // [sequences][heads][head_dim], BF16, RoPE applied
  float scale;              // of scores: log2(e) / sqrt(head_dim)
  // The partial states (attention/partial_state.h), written as units say.
  float* max;  // [states]
  float* sum;  // [states]
  float* out;  // [states][head_dim], not divided by the sum
};

// Of a launch. Addresses of rows are multiples of 16 bytes; results of 8 where they are BF16.
struct DecodeMerge {
  // [sequences + 1], as DecodePlan has it; no launch in front of this one that may still run writes
  // it (gpu/early_launch.h).
  const std::int32_t* first_state;
  std::int32_t sequences, heads;
  std::int32_t head_dim;  // a multiple of 4
  const float* max;       // the states, as units left them
  const float* sum;
  const float* out;
  // [sequences][heads][head_dim] each; null where it is not wanted. A sequence without tokens has
  // zeros.
  float* result_f32;
  std::byte* result_bf16;
  // The merged states, for more states to come; null where they are not wanted. That of no tokens
  // is -inf, 0 and zeros.
  float* total_max;  // [sequences][heads]
  float* total_sum;  // [sequences][heads]
  float* total_out;  // [sequences][heads][head_dim]
};

}  // namespace kvlane
