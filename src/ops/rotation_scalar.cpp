// The judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rotation.h"

namespace kvlane {

void rotate_rows_scalar(const float* x, int rows, const float* rotation, int d, float* y) {
  for (int row = 0; row < rows; ++row, x += d, y += d) {
    for (int j = 0; j < d; ++j) y[j] = 0;
    for (int i = 0; i < d; ++i) {
      const float* const from = rotation + i * d;
      for (int j = 0; j < d; ++j) y[j] += x[i] * from[j];
    }
  }
}

}  // namespace kvlane
