// Pages of few channels in plain C++: the judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/narrow_page.h"
#include "base/bf16.h"

namespace kvlane {

void attend_narrow_scalar(const NarrowItem& item) {
  const int k = item.dims.k;
  const int v = item.dims.v;
  StateTile& tile = *item.tile;
  const std::uint16_t* const values = item.page + kBlockTokens * k;
  const auto key = [&](int token, int channel) {
    const int word = channel / 2 * kBlockTokens + token;
    return to_float(bf16{item.page[2 * word + channel % 2]});
  };
  const auto value = [&](int token, int channel) {
    return to_float(bf16{values[2 * (token / 2 * v + channel) + token % 2]});
  };
  for (int row = 0; row < tile.rows; ++row) {
    float weight[kBlockTokens];
    float max = tile.max[row];
    for (int token = 0; token < kBlockTokens; ++token) {
      float score = 0;
      for (int channel = 0; channel < k; ++channel) {
        score += item.q[row][channel] * key(token, channel);
      }
      weight[token] = score;
      max = std::max(max, score);
    }
    const float keep = std::exp2(tile.max[row] - max);
    float sum = 0;
    for (float& each : weight) sum += each = std::exp2(each - max);
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + sum;
    float* const out = tile.out + row * v;
    for (int channel = 0; channel < v; ++channel) {
      float total = 0;
      for (int token = 0; token < kBlockTokens; ++token) {
        total += weight[token] * value(token, channel);
      }
      out[channel] = out[channel] * keep + total;
    }
  }
}

}  // namespace kvlane
