// Small floating-point codes as BF16 numbers with a scale: what kernels make their tables of. All
// of it is for the compiler to evaluate, so that files of a tier may use it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "quant/linear_layout.h"

namespace kvlane::linear {

static constexpr int exponent_bits(CodeKind code) {
  return code_bits(code) - 1 - small_float(code).mantissa_bits;
}

// The entries with which every value but zero is a normal BF16 number: a scale then only adds to
// the exponent.
static constexpr int least_entry(CodeKind code) {
  return small_float(code).bias + small_float(code).mantissa_bits;
}
static constexpr int greatest_entry(CodeKind code) {
  return 254 - ((1 << exponent_bits(code)) - 1 - small_float(code).bias);
}

// A magnitude as BF16, with scale 1.
static constexpr std::uint16_t bf16_magnitude(CodeKind code, unsigned magnitude) {
  const SmallFloat type = small_float(code);
  unsigned exponent = magnitude >> type.mantissa_bits;
  unsigned mantissa = (magnitude << (7 - type.mantissa_bits)) & 0x7f;
  if (magnitude == 0) return 0;
  if (exponent == 0) {
    exponent = 1;
    while (mantissa < 0x80) {
      mantissa <<= 1;
      --exponent;  // wraps below 0; the sum below wraps back
    }
    mantissa &= 0x7f;
  }
  return static_cast<std::uint16_t>(((exponent + 127U - unsigned(type.bias)) << 7) + mantissa);
}

// What BF16's bias is ahead of the type's, in the place of the exponent.
template <CodeKind kCode>
static constexpr int bias_ahead() {
  return (127 - small_float(kCode).bias) << 7;
}

}  // namespace kvlane::linear
