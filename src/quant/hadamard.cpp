// Butterflies of sums and differences.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hadamard.h"

#include <cmath>

namespace kvlane {

void mix_channels_scalar(float* rows, int count, int head_dim) {
  const int n = head_dim & -head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(n));
  const float* const end = rows + static_cast<long>(count) * head_dim;
  for (float* run = rows; run < end; run += n) {
    for (int step = 1; step < n; step *= 2) {
      for (int first = 0; first < n; first += 2 * step) {
        for (int i = first; i < first + step; ++i) {
          const float a = run[i];
          const float b = run[i + step];
          run[i] = a + b;
          run[i + step] = a - b;
        }
      }
    }
    for (int i = 0; i < n; ++i) run[i] *= scale;
  }
}

}  // namespace kvlane
