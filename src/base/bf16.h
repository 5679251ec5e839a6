// The 16-bit floating-point types of KV caches, and their conversions to and from float.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace kvlane {

// bfloat16 bits. A type of its own, so that bits and integers are never mixed up. Trivial on
// purpose.
struct bf16 {
  std::uint16_t bits;
};
static_assert(sizeof(bf16) == 2);

// IEEE binary16 bits.
struct fp16 {
  std::uint16_t bits;
};
static_assert(sizeof(fp16) == 2);

inline float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

// Rounds half to even; NaN stays NaN (its quiet bit is set), overflow goes to infinity.
inline bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((u >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

// Rounds half to even; NaN becomes the quiet one, overflow goes to infinity.
inline fp16 to_fp16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = u >> 16 & 0x8000U;
  const std::uint32_t magnitude = u & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U;
  } else if (magnitude >= 0x477ff000U) {  // 65520 and above
    half = 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: whole numbers of 2^-24, the spacing at 0.5
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  } else {
    half = ((magnitude + 0xfffU + (magnitude >> 13 & 1U)) >> 13) - (112U << 10);
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

// Exact: every binary16 value, subnormals and NaN payloads included, is a float.
inline float to_float(fp16 x) {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffU;
  if (magnitude >= 0x7c00U)
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  // Scaling by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals on the way.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

}  // namespace kvlane
