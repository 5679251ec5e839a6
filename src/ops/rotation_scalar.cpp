// The judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rotation.h"

namespace kvlane {

void rotate_rows_scalar(const float* x, int rows, const float* rotation, int inner, int width,
                        float* y) {
  for (int row = 0; row < rows; ++row, x += inner, y += width) {
    for (int j = 0; j < width; ++j) y[j] = 0;
    for (int i = 0; i < inner; ++i) {
      const float* const from = rotation + i * width;
      for (int j = 0; j < width; ++j) y[j] += x[i] * from[j];
    }
  }
}

}  // namespace kvlane
