// The merge rule of partial attention.
// SPDX-License-Identifier: Apache-2.0
#include "attention/partial_state.h"

#include <cmath>

namespace kvlane {

void merge(const StateTile& from, StateTile& into) {
  for (int row = 0; row < into.rows; ++row) {
    // An empty side has max = -inf; exp2(-inf - -inf) would be NaN.
    if (from.sum[row] == 0) continue;
    const float max = into.max[row] > from.max[row] ? into.max[row] : from.max[row];
    const float keep = into.sum[row] == 0 ? 0.0F : std::exp2(into.max[row] - max);
    const float add = std::exp2(from.max[row] - max);
    into.max[row] = max;
    into.sum[row] = into.sum[row] * keep + from.sum[row] * add;
    float* out = into.out + row * into.head_dim;
    const float* other = from.out + row * from.head_dim;
    for (int i = 0; i < into.head_dim; ++i) out[i] = out[i] * keep + other[i] * add;
  }
}

}  // namespace kvlane
