// Rows of heads times a matrix: x R, the change of basis of format `zack` where R is square.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cpu/isa.h"

namespace kvlane {

// y[rows][width] = x[rows][inner] R, all in F32, R row-major [inner][width], width a multiple
// of 16. A value is the sum over the rows of R in their order, so a row's bits do not depend on how
// many there are. `y` does not overlap `x`. No alignment is needed.
using RotationKernel = void (*)(const float* x, int rows, const float* rotation, int inner,
                                int width, float* y);

void rotate_rows_scalar(const float* x, int rows, const float* rotation, int inner, int width,
                        float* y);
void rotate_rows_avx2(const float* x, int rows, const float* rotation, int inner, int width,
                      float* y);
void rotate_rows_avx512(const float* x, int rows, const float* rotation, int inner, int width,
                        float* y);

inline RotationKernel rotation_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return rotate_rows_avx512;
    if (isa >= Isa::kAvx2) return rotate_rows_avx2;
  }
  return rotate_rows_scalar;
}

// The same in place with R [d][d], for heads [heads][d] of each of some tokens, which lie `stride`
// numbers apart: several tokens' rows share what is read of R, where one token's would wait for it.
// d is at most 256.
void rotate_heads(RotationKernel kernel, const float* rotation, int d, float* x, int heads,
                  int tokens, std::size_t stride);

}  // namespace kvlane
