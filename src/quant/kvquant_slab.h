// Parts of a `kvquant` slab, and its pages from them. In this order:
//
// - u32 cut: values of K outside their limits for which there was no room;
// - u32 ends[kv_heads][2]: where outliers of a head's K, and of its V, end, counted in outliers;
// - u16 v_low[64], v_high[64], BF16: limits of each token's V;
// - codes: K [64] rows, then V [64] rows of each head;
// - outliers: u16 place in the plane (token * width + channel), u16 value (BF16), by place;
// - zeros up to slab_bytes().
//
// A head's K or V has all its channels or, behind `zack`, the first ones: its width. A row of codes
// is groups of 16 channels; a group is `bits` words of 16 bits: the lowest bits of its codes, a
// channel each, then the second ones, ... So a word is a mask register.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "format/shape.h"
#include "ops/rows.h"

namespace kvlane::kvquant {

inline constexpr int kGroup = 16;
inline constexpr int kLevelsMax = 16;
inline constexpr int kHeadDimMax = 512;
inline constexpr std::size_t kOutlierBytes = 4;

constexpr int groups_of(int head_dim) { return (head_dim + kGroup - 1) / kGroup; }
constexpr std::size_t row_bytes(int head_dim, int bits) {
  return std::size_t(groups_of(head_dim)) * bits * sizeof(std::uint16_t);
}
constexpr std::size_t limits_at(int kv_heads) { return sizeof(std::uint32_t) * (1 + 2 * kv_heads); }
constexpr std::size_t codes_at(int kv_heads) {
  return limits_at(kv_heads) + 2 * sizeof(std::uint16_t) * kBlockTokens;
}

// One plane of a page. Codes and outliers may be any bytes.
struct Plane {
  int head_dim;            // its width: even, at most kHeadDimMax
  int bits;                // 2, 3 or 4
  const std::byte* codes;  // [64][row_bytes()]
  const float* values;     // [kLevelsMax]: what codes stand for
  const std::byte* outliers;
  std::size_t outlier_count;
  std::uint16_t* rows;  // [64][head_dim], BF16: the result
};

// middle, reach: [16 * groups_of(head_dim)] of each channel; angles: [64] of each token, or null
// for keys that were coded as they are.
using OpenKeys = void (*)(const Plane& plane, const float* middle, const float* reach,
                          const RopeAngles* angles);
// middle, reach: [64] of each token.
using OpenValues = void (*)(const Plane& plane, const float* middle, const float* reach);

void open_keys_scalar(const Plane& plane, const float* middle, const float* reach,
                      const RopeAngles* angles);
void open_values_scalar(const Plane& plane, const float* middle, const float* reach);
void open_keys_avx2(const Plane& plane, const float* middle, const float* reach,
                    const RopeAngles* angles);
void open_values_avx2(const Plane& plane, const float* middle, const float* reach);
void open_keys_avx512(const Plane& plane, const float* middle, const float* reach,
                      const RopeAngles* angles);
void open_values_avx512(const Plane& plane, const float* middle, const float* reach);

inline OpenKeys open_keys_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return open_keys_avx512;
    if (isa >= Isa::kAvx2) return open_keys_avx2;
  }
  return open_keys_scalar;
}

inline OpenValues open_values_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return open_values_avx512;
    if (isa >= Isa::kAvx2) return open_values_avx2;
  }
  return open_values_scalar;
}

}  // namespace kvlane::kvquant
