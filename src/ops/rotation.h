// Rows of heads times a square matrix: x R, the change of basis of format `zack`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/isa.h"

namespace kvlane {

// y[rows][d] = x[rows][d] R, all in F32, R row-major [d][d], d a multiple of 16. A value is the sum
// over the rows of R in their order, so a row's bits do not depend on how many there are. `y` does
// not overlap `x`. No alignment is needed.
using RotationKernel = void (*)(const float* x, int rows, const float* rotation, int d, float* y);

void rotate_rows_scalar(const float* x, int rows, const float* rotation, int d, float* y);
void rotate_rows_avx2(const float* x, int rows, const float* rotation, int d, float* y);
void rotate_rows_avx512(const float* x, int rows, const float* rotation, int d, float* y);

inline RotationKernel rotation_kernel(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return rotate_rows_avx512;
    case Isa::kAvx2: return rotate_rows_avx2;
    default: return rotate_rows_scalar;
  }
}

}  // namespace kvlane
