// Softmax in F32, with noise if the rule has some.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"

namespace kvlane {
namespace {

// Sixteen partial sums in a fixed order.
float product(const float* query, const std::uint16_t* key, int dim) {
  constexpr int kLanes = 16;
  float sum[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += query[i + lane] * to_float(bf16{key[i + lane]});
    }
  }
  for (int lane = 0; i < dim; ++i, ++lane) sum[lane] += query[i] * to_float(bf16{key[i]});
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
  }
  return sum[0];
}

void add_noise(const ScoredQuery& query, std::span<const std::int32_t> positions,
               std::span<float> products) {
  const auto noise = [&](int quad) {
    return gumbel_noise(query.rule->seed, query.layer, query.query_head, query.position, quad);
  };
  if (positions.empty()) {
    for (std::size_t i = 0; i < products.size(); i += 4) {
      const auto four = noise(static_cast<int>(i / 4));
      for (std::size_t j = 0; j < std::min<std::size_t>(4, products.size() - i); ++j) {
        products[i + j] += four[j];
      }
    }
    return;
  }
  for (std::size_t i = 0; i < products.size(); ++i) {
    products[i] += noise(positions[i] / 4)[positions[i] % 4];
  }
}

}  // namespace

void key_products(const float* query, const std::uint16_t* keys, int dim, int count,
                  float* products) {
  for (int i = 0; i < count; ++i) products[i] = product(query, keys + std::size_t(i) * dim, dim);
}

void to_probabilities(const ScoredQuery& query, std::span<const std::int32_t> positions,
                      std::span<float> products) {
  if (query.rule->score == EvictionRule::Score::kKeyformer) {
    add_noise(query, positions, products);
    const float scale = 1 / query.rule->temperature(query.step);
    for (float& each : products) each *= scale;
  }
  const float max = *std::max_element(products.begin(), products.end());
  double sum = 0;
  for (float& each : products) sum += each = std::exp(each - max);
  const float scale = static_cast<float>(1 / sum);
  for (float& each : products) each *= scale;
}

}  // namespace kvlane
