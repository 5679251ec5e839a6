// Models with random weights, for tests that have no checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/random.h"
#include "model/device_model.h"

namespace kvlane::random_model_fixture {

inline ModelConfig config_of(int heads, int kv_heads, int head_dim, bool qk_norm) {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 192;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.ffn = 264;
  config.vocab = 520;
  config.context = 512;
  config.qk_norm = qk_norm;
  return config;
}

// The same values for the same name and shape. Norms are around 1, products keep the size of their
// input.
class RandomTensors {
 public:
  Result<TensorView> operator()(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::uint64_t seed = 0;
    for (const char c : name) seed = seed * 31 + static_cast<unsigned char>(c);
    std::size_t count = 1;
    for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
    const bool norm = shape.size() == 1;
    const double scale = norm ? 0.2 : 1 / std::sqrt(static_cast<double>(shape.back()));
    values_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = -2;  // of four dice: nearly a normal distribution, with variance 1/3
      for (const std::uint32_t die : philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})) {
        sum += die * 0x1p-32;
      }
      values_[i] = to_bf16(static_cast<float>(norm + sum * std::sqrt(3.0) * scale));
    }
    return TensorView{
        ElementType::kBf16, shape, {reinterpret_cast<const std::byte*>(values_.data()), 2 * count}};
  }

 private:
  std::vector<bf16> values_;
};

// Rotations as in models of base 10,000.
inline RopeTable rope_of(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int i = 0; i < config.head_dim / 2; ++i) {
    frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / config.head_dim)));
  }
  return {frequencies, config.context};
}

}  // namespace kvlane::random_model_fixture
