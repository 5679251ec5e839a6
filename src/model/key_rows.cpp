// Norm, RoPE, basis.
// SPDX-License-Identifier: Apache-2.0
#include "model/key_rows.h"

#include "model/format_heads.h"
#include "ops/rows.h"

namespace kvlane {

void KeyRows::place(float* keys, int layer, int position) const {
  const ModelConfig& config = model_.config();
  const int d = config.head_dim;
  const RopeAngles angles = model_.rope().angles(position);
  for (int h = 0; h < config.kv_heads; ++h, keys += d) {
    if (config.qk_norm) {
      rms_norm(keys, model_.layer(layer).k_norm.weight.data(), config.norm_eps, d, keys);
    }
    rope(keys, angles, d);
  }
}

void KeyRows::turn(float* keys, int layer, int tokens, std::size_t stride) const {
  if (format_ == nullptr) return;
  const ModelConfig& config = model_.config();
  const int d = config.head_dim;
  const int first = first_head_in_slabs(model_, format_);
  for (int h = 0; h < config.kv_heads; ++h, keys += d) {
    const float* const rotation = format_->key_rotation(layer, first + h);
    if (rotation != nullptr) rotate_heads(rotate_, rotation, d, keys, 1, tokens, stride);
  }
}

}  // namespace kvlane
