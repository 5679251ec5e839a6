// Gathers rows, rotates them together, and puts them back.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rotation.h"

#include <algorithm>

namespace kvlane {

void rotate_heads(RotationKernel kernel, const float* rotation, int d, float* x, int heads,
                  int tokens, std::size_t stride) {
  constexpr int kRows = 12;  // at a time: a multiple of what the fast kernels take
  constexpr int kHeadDimMax = 256;
  alignas(64) float from[kRows * kHeadDimMax], to[kRows * kHeadDimMax];
  const auto place = [&](int row) { return x + row / heads * stride + row % heads * d; };
  for (int first = 0; first < heads * tokens; first += kRows) {
    const int rows = std::min(kRows, heads * tokens - first);
    for (int i = 0; i < rows; ++i) std::copy_n(place(first + i), d, from + i * d);
    kernel(from, rows, rotation, d, d, to);
    for (int i = 0; i < rows; ++i) std::copy_n(to + i * d, d, place(first + i));
  }
}

}  // namespace kvlane
