// Rotary frequencies, and what is done to them for long contexts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

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

// The pair that turns `rotations` times over the original context, as a fraction of all pairs.
double yarn_pair(double rotations, const ModelConfig& config) {
  const double context = config.rope_scaling.original_max_position;
  return config.head_dim * std::log(context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_theta));
}

// YaRN: pairs that turn often stay, those that turn seldom are stretched by `factor`, between lies
// a ramp over their indices. In F32 where transformers has it so.
void apply_yarn(const ModelConfig& config, std::vector<float>& frequencies) {
  const RopeScaling& scaling = config.rope_scaling;
  double low = yarn_pair(scaling.beta_fast, config), high = yarn_pair(scaling.beta_slow, config);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, config.head_dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto at = static_cast<float>((static_cast<double>(i) - low) / (high - low));
    const float stays = 1 - std::clamp(at, 0.0F, 1.0F);
    const float stretched = frequencies[i] / static_cast<float>(scaling.factor);
    frequencies[i] = stretched * (1 - stays) + frequencies[i] * stays;
  }
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const ModelConfig& config, int context) {
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<float> frequencies(config.head_dim / 2);
  if (config.learned_positions > 0) return frequencies;
  const std::vector<double>& factors =
      context > scaling.original_max_position ? scaling.long_factors : scaling.short_factors;
  for (int i = 0; i < config.head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const float power = std::pow(static_cast<float>(config.rope_theta), exponent);
    switch (scaling.kind) {
      case RopeScaling::Kind::kLlama3:
        frequencies[i] = llama3_frequency(1.0F / power, scaling);
        break;
      case RopeScaling::Kind::kLinear:
        frequencies[i] = 1.0F / power / static_cast<float>(scaling.factor);
        break;
      case RopeScaling::Kind::kLongRope:
        frequencies[i] = 1.0F / (static_cast<float>(factors[i]) * power);
        break;
      default: frequencies[i] = 1.0F / power;
    }
  }
  if (scaling.kind == RopeScaling::Kind::kYarn) apply_yarn(config, frequencies);
  return frequencies;
}

}  // namespace kvlane
