// The rotary angles of every position of a context.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ops/rows.h"

namespace kvlane {

// Rows of cos and sin. Frequencies and angles are rounded to F32 as in Hugging Face's code: models
// were trained with these angles, at far positions more exact ones would be other ones.
// Immutable, thread-safe.
class RopeTable {
 public:
  RopeTable() = default;
  // inverse_frequencies: [head_dim / 2]; positions 0 ... positions - 1. cos and sin are multiplied
  // by `scale`.
  RopeTable(const std::vector<float>& inverse_frequencies, int positions, float scale = 1);

  RopeAngles angles(int position) const {
    const float* row = values_.data() + std::size_t(position) * 2 * half_;
    return {row, row + half_};
  }

 private:
  int half_ = 0;
  std::vector<float> values_;  // [positions][cos, sin][head_dim / 2]
};

}  // namespace kvlane
