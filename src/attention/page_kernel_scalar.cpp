// One page in plain C++: the judge of the fast kernels. Probabilities stay in F32.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "attention/page_kernel.h"
#include "base/bf16.h"

namespace kvlane {
namespace {

// Eight partial sums in a fixed order.
float dot(const std::uint16_t* a, const std::uint16_t* b, int n) {
  constexpr int kLanes = 8;
  float sum[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += to_float(bf16{a[i + lane]}) * to_float(bf16{b[i + lane]});
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) sum[lane] += to_float(bf16{a[i]}) * to_float(bf16{b[i]});
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

}  // namespace

void attend_page_scalar(const PageQuery& query, const std::uint16_t* page, StateTile& tile) {
  const int key_dim = query.key_dim;
  const int head_dim = tile.head_dim;
  const std::uint16_t* keys = page;
  const std::uint16_t* values = page + kBlockTokens * key_dim;
  for (int row = 0; row < tile.rows; ++row) {
    const int visible = query.visible[row];
    float weight[kBlockTokens];
    float max = tile.max[row];
    for (int token = 0; token < visible; ++token) {
      float score = 0;
      for (int part = 0; part < query.parts; ++part) {
        score += dot(query.q[row] + part * query.part_stride, keys + token * key_dim, key_dim);
      }
      weight[token] = score * query.scale;
      if (weight[token] > max) max = weight[token];
    }
    const float keep = std::exp2(tile.max[row] - max);
    float sum = 0;
    for (int token = 0; token < visible; ++token) {
      weight[token] = std::exp2(weight[token] - max);
      sum += weight[token];
    }
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + sum;
    float* out = tile.out + row * head_dim;
    for (int i = 0; i < head_dim; ++i) out[i] *= keep;
    for (int token = 0; token < visible; ++token) {
      const std::uint16_t* value = values + token * head_dim;
      for (int i = 0; i < head_dim; ++i) out[i] += weight[token] * to_float(bf16{value[i]});
    }
  }
}

}  // namespace kvlane
