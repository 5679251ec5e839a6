// Attention over pages of codes (spec/hack.md) in FP32: queries and weights stay what they are. Two
// arithmetics on the same slabs, for rows as attention/hack_page.h has them:
//
// Codes (compute=bf16): no value is made. Bases and scales are applied to sums of products with
// codes; with h the middle code and w = 2^(score - max)
//
//   K by token         score = m * (sum of q) + s * (sum of q c), over each partition
//   K by both          score = (sum of q m) + s * (sum of q (c - h)); the first term is the page's
//   V by channel       out = m * (sum of w) + s * (sum of w c), over each partition
//   V by both          out = m * (sum of w) + (sum of (w s) (c - h))
//
// Values (compute=dequantise): each value m + s c, or m + s (c - h), is made where it is multiplied
// with what it belongs to, once for all rows of a step: what attention on codes is compared with.
//
// Both differ from opening pages by float rounding alone, the first one in the order of sums too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_page.h"

namespace kvlane {

// What queries and weights are multiplied with.
enum class HackOperand : std::uint8_t { kCodes, kValues };

// Kernels that use `values` and `sum` of HackQuery.
HackKernel hack_float_kernel_scalar(HackOperand operand);
HackKernel hack_float_kernel_avx2(HackOperand operand);
HackKernel hack_float_kernel_avx512(HackOperand operand);

inline HackKernel hack_float_kernel(HackOperand operand, Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return hack_float_kernel_avx512(operand);
    if (isa >= Isa::kAvx2) return hack_float_kernel_avx2(operand);
  }
  return hack_float_kernel_scalar(operand);
}

}  // namespace kvlane
