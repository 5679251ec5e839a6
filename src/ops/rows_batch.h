// What launches of row operations are told (ops/rows_gpu.h), without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlane {

// Of a launch. Addresses are multiples of 16 bytes, here and below.
struct EmbedRows {
  const std::byte* table;      // [vocab][hidden], BF16
  const std::int32_t* tokens;  // [rows]; negative for a row of zeros
  std::int32_t rows, hidden;   // hidden: a multiple of 8
  float* residual;             // [rows][hidden]
};

// Row i is about row take[i] of `residual` and `add`, or, where `take` is null, row i of them. With
// `add` no row is taken twice.
struct NormRows {
  float* residual;           // [rows of the pass][n]
  const float* add;          // the same; residual += add comes first and stays. Null: nothing
  const std::int32_t* take;  // [rows]; negative for a row of zeros
  const float* weight;       // [n]
  float eps;
  std::int32_t rows, n;  // n: a multiple of 8
  std::byte* out;        // [rows][n], BF16: the norms. Null: none, and no look at `weight`
};

struct SiluRows {
  const float* gate_up;    // [rows][2 ffn], gate first
  std::int32_t rows, ffn;  // ffn: a multiple of 8
  std::byte* out;          // [rows][ffn], BF16: silu(gate) * up
};

// Values of a row that is normed, at most.
inline constexpr int kNormValuesMax = 16384;

// Of a launch. Addresses and block_bytes are multiples of 16.
struct QkvRows {
  const float* product;  // [rows][(heads + 2 kv_heads) head_dim]: Q heads, K heads, V heads
  const float* q_norm;   // [head_dim]; null for a model without norms of heads
  const float* k_norm;   // the same, null together
  float eps;
  const float* angles;            // [positions][cos, sin][head_dim / 2]: RopeTable's values
  const std::int32_t* positions;  // [rows], in their sequences. Negative: Q is zeros, and nothing
                                  // is written to pages
  const std::int32_t* sequences;  // [rows]: which row of `tables`
  const std::int32_t* tables;     // [sequences][table_stride]: the ids of a sequence's blocks
  std::int32_t table_stride;
  std::int32_t rows;
  std::int32_t heads;  // 0: of K and V alone
  std::int32_t kv_heads;
  std::int32_t head_dim;  // a multiple of 8, up to 256
  std::byte* q;           // [rows][heads][head_dim], BF16; null without heads
  std::byte* slabs;       // the layer's slab of block 0: pages of K[64][head_dim], V[64][head_dim]
  std::size_t block_bytes;  // from there to the slab of block 1
  // [kv_heads][head_dim][head_dim], row-major: Q and K behind the embedding, x, become x R before
  // they are rounded, R their KV head's. Null: none (ops/rotated_qkv_device.h)
  const float* rotations = nullptr;
};

// Eight channels a lane.
inline constexpr int kQkvHeadDimMax = 256;

}  // namespace kvlane
