// Norm, RoPE, basis.
// SPDX-License-Identifier: Apache-2.0
#include "model/key_row.h"

#include <algorithm>

#include "attention/attention.h"
#include "ops/rows.h"

namespace kvlane {

void KeyRow::finish(float* key, int layer, int kv_head, int position) const {
  const ModelConfig& config = model_.config();
  const int d = config.head_dim;
  if (config.qk_norm) {
    rms_norm(key, model_.layers()[layer].k_norm.data(), config.norm_eps, d, key);
  }
  rope(key, model_.rope().angles(position), d);
  const float* const rotation = format_ ? format_->key_rotation(layer, kv_head) : nullptr;
  if (rotation == nullptr) return;
  float rotated[kTileHeadDimMax];
  rotate_(key, 1, rotation, d, rotated);
  std::copy_n(rotated, d, key);
}

}  // namespace kvlane
