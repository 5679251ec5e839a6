// Fills the table of rotary angles.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rope_table.h"

#include <cmath>

#include "cpu/parallel.h"

namespace kvlane {

RopeTable::RopeTable(const std::vector<float>& inverse_frequencies, int positions, float scale)
    : half_(static_cast<int>(inverse_frequencies.size())),
      values_(std::size_t(positions) * 2 * inverse_frequencies.size()) {
  parallel_ranges(positions, 1024, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t position = first; position < last; ++position) {
      float* row = values_.data() + position * 2 * half_;
      for (int i = 0; i < half_; ++i) {
        const double angle = static_cast<float>(position) * inverse_frequencies[i];
        row[i] = static_cast<float>(std::cos(angle)) * scale;
        row[half_ + i] = static_cast<float>(std::sin(angle)) * scale;
      }
    }
  });
}

}  // namespace kvlane
