// The binary16 numbers next to a float: rounding down and up, for ranges that must contain what
// they were made from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "base/bf16.h"

namespace kvlane {

inline constexpr float kFp16Max = 65504;

// The greatest fp16 number that is not above `x`, subnormals included; +0 for both zeros.
// |x| <= kFp16Max.
inline fp16 fp16_not_above(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffU);
  const bool negative = magnitude > 0 && (bits >> 31) != 0;
  // Towards zero first. Below 2^-14 fp16 is a whole number of 2^-24; from there on it has the
  // float's bits with the exponent's bias moved from 127 to 15.
  const std::uint32_t toward_zero = magnitude < 0x1p-14F
                                        ? static_cast<std::uint32_t>(magnitude * 0x1p24F)
                                        : ((bits & 0x7fffffffU) >> 13) - (112U << 10);
  const bool exact = to_float(fp16{static_cast<std::uint16_t>(toward_zero)}) == magnitude;
  const std::uint32_t away = negative && !exact ? 1 : 0;
  return {static_cast<std::uint16_t>((negative ? 0x8000U : 0U) | (toward_zero + away))};
}

// The least fp16 number that is not below `x`; 0 <= x <= kFp16Max.
inline fp16 fp16_not_below(float x) {
  const fp16 mirrored = fp16_not_above(-x);
  return {static_cast<std::uint16_t>(mirrored.bits & 0x7fffU)};
}

}  // namespace kvlane
