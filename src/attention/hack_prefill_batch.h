// What launches of prefill attention on codes are told, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/hack_prepare_batch.h"
#include "format/kv_window.h"
#include "quant/channel_mix.h"
#include "quant/hack_layout.h"

namespace kvlane {

// What units of a launch share. Slabs begin at multiples of 64 bytes, the rest as PrefillBatch has
// it. Scales of K and V are not negative; otherwise results are wrong, but nothing is read or
// written elsewhere.
struct HackPrefillBatch {
  const std::int32_t* tables;  // [spans][table_stride]: the ids of a sequence's sealed blocks
  std::int32_t table_stride;
  std::int32_t heads, kv_heads;
  std::int32_t head_dim;              // a multiple of 16
  std::int32_t key_bits, value_bits;  // 2 or 4
  const std::byte* slabs;             // the layer's sealed slab of block 0
  std::size_t block_bytes;            // from there to the slab of block 1
  hack::PageLayout layout;
  KvWindow window;       // which blocks are rows instead
  HackPrepared queries;  // of rows [rows][heads]
  ChannelMix mix;
  // The partial states (attention/partial_state.h) of all pairs of units; those that see no sealed
  // page are of no tokens.
  float* max;  // [rows][heads]
  float* sum;  // [rows][heads]
  float* out;  // [rows][heads][head_dim], not divided by the sum
};

}  // namespace kvlane
