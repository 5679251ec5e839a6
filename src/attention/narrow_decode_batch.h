// What launches of decode attention over narrow pages are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/narrow_decode_plan.h"

namespace kvlane {

// What pieces of a launch share. Slabs, `q` and `out` begin at multiples of 16 bytes. K, V and
// scores are finite.
struct NarrowDecodeBatch {
  const std::int32_t* tables;  // [sequences][table_stride]: the ids of a sequence's sealed blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;      // of rows of `q` and `out`: a multiple of 16
  const std::byte* slabs;     // the layer's sealed slab of block 0
  std::size_t block_bytes;    // from there to the slab of block 1
  const std::byte* q;         // [sequences][heads][head_dim], BF16, in the basis of the pages
  float scale;                // of scores: log2(e) / sqrt(head_dim)
  const NarrowPiece* pieces;  // as the plan has them
  const std::int32_t* first;  // [machines + 1]
  // The partial states (attention/partial_state.h), written as pieces say.
  float* max;  // [states]
  float* sum;  // [states]
  float* out;  // [states][head_dim], not divided by the sum; zeros behind a head's v
};

}  // namespace kvlane
