// What launches that seal narrow pages are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/narrow_head.h"
#include "quant/seal_place.h"

namespace kvlane {

// What a launch seals of one layer: blocks of rows, pages of K[64][head_dim] then V[64][head_dim]
// in BF16. All addresses and distances are multiples of 16 bytes.
struct ZackSealBatch {
  const HackSealPlace* places;   // [count]
  const std::byte* rows;         // the layer's slab of rows of block 0
  std::size_t rows_block_bytes;  // from there to that of block 1
  std::byte* slabs;              // the layer's sealed slab of block 0
  std::size_t block_bytes;
  std::int32_t kv_heads, head_dim;  // head_dim is a multiple of 16
  const NarrowHead* heads;          // [kv_heads]
  // [count][kv_heads][K, V]: 1 where a value is no finite number: then the page means nothing.
  // Else 0.
  std::uint32_t* beyond;
};

}  // namespace kvlane
