// What launches of decode attention on codes are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/hack_prepare_batch.h"
#include "quant/channel_mix.h"
#include "quant/hack_layout.h"

namespace kvlane {

// What units of a launch share. Slabs begin at multiples of 64 bytes, the rest as DecodeBatch has
// it. Tokens of units are multiples of 64: a page is sealed whole. Scales of K and V are not
// negative, which no encoder makes them; otherwise results are wrong, but nothing is read or
// written elsewhere.
struct HackDecodeBatch {
  const std::int32_t* tables;  // [sequences][table_stride]: the ids of a sequence's sealed blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;    // a multiple of 16
  const std::byte* slabs;   // the layer's sealed slab of block 0
  std::size_t block_bytes;  // from there to the slab of block 1
  hack::PageLayout layout;
  HackPrepared queries;  // of rows [sequences][heads]
  ChannelMix mix;
  // The partial states (attention/partial_state.h), written as units say.
  float* max;  // [states]
  float* sum;  // [states]
  float* out;  // [states][head_dim], not divided by the sum
};

// A warp's pages of a unit at most: their means are multiplied at once, as rows of a tile.
inline constexpr int kHackWarpPages = 16;

}  // namespace kvlane
