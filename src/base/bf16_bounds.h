// The bfloat16 numbers next to a float: rounding down and up, for ranges that must contain what
// they were made from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "base/bf16.h"

namespace kvlane {

// The greatest bf16 number that is not above `x`; +0 for both zeros. `x` is finite and not below
// the least bf16 number.
inline bf16 bf16_not_above(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffU) == 0) return {0};
  const bool negative = (bits >> 31) != 0;
  const bool exact = (bits & 0xffffU) == 0;
  return {static_cast<std::uint16_t>((bits >> 16) + (negative && !exact ? 1 : 0))};
}

// The least bf16 number that is not below `x` >= 0, which is not above the greatest.
inline bf16 bf16_not_below(float x) {
  return {static_cast<std::uint16_t>(bf16_not_above(-x).bits & 0x7fffU)};
}

}  // namespace kvlane
