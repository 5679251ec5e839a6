// Rounding to the narrow types that KV caches may have: benchmarks have only bfloat16 values of
// real models.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "format/element.h"

namespace kvlane {

// Sign, exponent and mantissa from the top. `largest` is the code of the largest finite value.
struct NarrowFloat {
  int exponent_bits;
  int mantissa_bits;
  std::uint32_t largest;
};

// Of kFp16, kFp8E4m3 (which has no infinity) and kFp8E5m2.
constexpr NarrowFloat narrow_float(ElementType type) {
  if (type == ElementType::kFp16) return {5, 10, 0x7BFF};
  if (type == ElementType::kFp8E4m3) return {4, 3, 0x7E};
  return {5, 2, 0x7B};
}

// The code of the nearest value, of two equally near ones the even one; what lies beyond the
// largest finite value becomes that, infinity too. `x` is no NaN.
inline std::uint32_t to_narrow(NarrowFloat type, float x) {
  const int least_exponent = 2 - (1 << (type.exponent_bits - 1));
  const float magnitude = std::min(std::abs(x), std::numeric_limits<float>::max());
  const int exponent =
      std::max(magnitude == 0 ? least_exponent : std::ilogb(magnitude), least_exponent);
  // In steps of the last mantissa bit: exact, and 2 to the power of mantissa_bits more than the
  // mantissa but for subnormals, so that rounding up carries into the exponent by itself.
  const auto steps = static_cast<std::uint32_t>(
      std::nearbyint(std::ldexp(magnitude, type.mantissa_bits - exponent)));
  const auto above_least = static_cast<std::uint32_t>(exponent - least_exponent);
  const std::uint32_t code = std::min((above_least << type.mantissa_bits) + steps, type.largest);
  const int sign_bit = type.exponent_bits + type.mantissa_bits;
  return code | static_cast<std::uint32_t>(std::signbit(x)) << sign_bit;
}

}  // namespace kvlane
