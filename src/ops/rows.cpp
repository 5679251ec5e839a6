// Row operations in plain C++: next to the products they cost a few per cent on every tier.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace kvlane {
namespace {

// Of f(x[i]): sixteen partial sums in a fixed order, open to vectors, closed to surprises.
template <class F>
float sum_of(const float* x, int n, const F& f) {
  constexpr int kLanes = 16;
  float sum[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += f(x[i + lane]);
  }
  for (int lane = 0; i < n; ++i, ++lane) sum[lane] += f(x[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  }
  return sum[0];
}

}  // namespace

void store_row(const float* row, int n, ElementType type, void* destination) {
  if (type == ElementType::kF32) {
    std::memcpy(destination, row, sizeof(float) * n);
    return;
  }
  auto* narrow = static_cast<bf16*>(destination);
  for (int i = 0; i < n; ++i) narrow[i] = to_bf16(row[i]);
}

void rms_norm(const float* x, const float* weight, float eps, int n, float* y) {
  const float squares = sum_of(x, n, [](float value) { return value * value; });
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int n,
                float* y) {
  const float mean = sum_of(x, n, [](float value) { return value; }) / static_cast<float>(n);
  // Around the mean, not E[x^2] - mean^2: that loses all digits where the mean is large.
  const float squares =
      sum_of(x, n, [mean](float value) { return (value - mean) * (value - mean); });
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void add_row(float* x, const float* y, int n) {
  for (int i = 0; i < n; ++i) x[i] += y[i];
}

void silu_multiply(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

void relu(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = std::max(x[i], 0.0F);
}

void gelu(float* x, int n) {
  constexpr auto kRootHalf = static_cast<float>(std::numbers::sqrt2 / 2);
  for (int i = 0; i < n; ++i) x[i] = 0.5F * x[i] * (1.0F + std::erf(x[i] * kRootHalf));
}

void rope(float* head, RopeAngles angles, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float low = head[i];
    const float high = head[i + half];
    head[i] = low * angles.cos[i] - high * angles.sin[i];
    head[i + half] = high * angles.cos[i] + low * angles.sin[i];
  }
}

}  // namespace kvlane
