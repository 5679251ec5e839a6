// Mixing the channels of rows, so that none is larger than the others: a Hadamard transform.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/isa.h"

namespace kvlane {

// Each run of n channels of rows [count][head_dim], with n the largest power of two that divides
// head_dim, becomes H x with H orthogonal and symmetric: products of mixed rows are those of the
// rows, and mixing twice gives the rows back, but for rounding. Sums are taken in the order of the
// usual butterflies, neighbours first, then all is divided by sqrt(n): the same bits in all tiers,
// but for the sign and the payload of NaN. Rows need no alignment.
using MixKernel = void (*)(float* rows, int count, int head_dim);

void mix_channels_scalar(float* rows, int count, int head_dim);
void mix_channels_avx2(float* rows, int count, int head_dim);
void mix_channels_avx512(float* rows, int count, int head_dim);

inline MixKernel mix_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return mix_channels_avx512;
    if (isa >= Isa::kAvx2) return mix_channels_avx2;
  }
  return mix_channels_scalar;
}

}  // namespace kvlane
