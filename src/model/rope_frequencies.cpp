// Rotary frequencies, and Llama 3's correction of them for long contexts.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "model/model.h"

namespace kvlane {
namespace {

// Long wavelengths are stretched by `factor`, short ones stay, those between are blended.
float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * 3.141592653589793 / frequency;
  const double context = scaling.original_max_position;
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  const double stretched = frequency / scaling.factor;
  if (wavelength > context / scaling.low_freq_factor) return static_cast<float>(stretched);
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * stretched + smooth * frequency);
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies(config.head_dim / 2);
  for (int i = 0; i < config.head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    float frequency = 1.0F / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (config.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
      frequency = llama3_frequency(frequency, config.rope_scaling);
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

}  // namespace kvlane
