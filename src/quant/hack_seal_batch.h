// What launches that seal pages of codes are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/channel_mix.h"
#include "quant/hack_layout.h"
#include "quant/seal_place.h"

namespace kvlane {

// What a launch seals of one layer: blocks of rows, pages of K[64][head_dim] then V[64][head_dim]
// in BF16. All addresses and distances are multiples of 16 bytes, of slabs of 64.
struct HackSealBatch {
  const HackSealPlace* places;   // [count]
  const std::byte* rows;         // the layer's slab of rows of block 0
  std::size_t rows_block_bytes;  // from there to that of block 1
  std::byte* slabs;              // the layer's sealed slab of block 0
  std::size_t block_bytes;
  std::int32_t kv_heads, head_dim;  // head_dim is a multiple of 16
  hack::Plane k, v;                 // metadata in binary16
  hack::PageLayout layout;
  ChannelMix mix;
  std::uint32_t* beyond;  // [count][kv_heads][2], see HackSealPart (quant/hack_seal_device.h)
};

}  // namespace kvlane
