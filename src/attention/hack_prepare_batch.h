// What launches that prepare queries for attention on codes are told, and what they leave
// (attention/hack_prepare_device.h), without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/channel_mix.h"

namespace kvlane {

// Partitions of K at most: of 32 channels.
inline constexpr int kHackTerms = 8;
inline constexpr int kHackPreparedDimMax = 32 * kHackTerms;

struct HackTerm {
  float sum, centre;
};

// What is made of rows [rows][head_dim]; rows of codes, rests and terms begin at multiples of 16
// bytes.
struct HackPrepared {
  std::byte* codes;  // [rows][head_dim], signed
  std::byte* rests;  // [rows][head_dim], binary16
  float* scales;     // [rows]
  HackTerm* terms;   // [rows][kHackTerms]; 0 of partitions that there are not
};

// Of a launch.
struct HackPrepare {
  const std::byte* q;  // [rows][head_dim], BF16, RoPE applied
  std::int32_t rows;
  std::int32_t head_dim;   // a multiple of 16 up to kHackPreparedDimMax
  float scale;             // of scores: log2(e) / sqrt(head_dim)
  ChannelMix mix;          // of the format
  float middle;            // h, of codes of K
  std::int32_t partition;  // 32, 64 or 128 channels of K; 0: by both
  HackPrepared to;
};

}  // namespace kvlane
