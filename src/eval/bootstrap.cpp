// Draws with replacement.
// SPDX-License-Identifier: Apache-2.0
#include "eval/bootstrap.h"

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace kvlane {

Interval bootstrap(int items, const Statistic& statistic, std::uint64_t seed) {
  std::vector<int> weights(items, 1);
  Interval interval{.value = statistic(weights)};
  std::vector<double> values;
  values.reserve(kBootstrapDraws);
  for (std::uint32_t draw = 0; draw < kBootstrapDraws; ++draw) {
    std::fill(weights.begin(), weights.end(), 0);
    for (int i = 0; i < items; ++i) {
      const auto words = philox4x32(seed, {draw, static_cast<std::uint32_t>(i), 0, 0});
      ++weights[static_cast<int>(uniform_unit(words[0], words[1]) * items)];
    }
    values.push_back(statistic(weights));
  }
  std::sort(values.begin(), values.end());
  interval.low = values[kBootstrapDraws / 40];
  interval.high = values[kBootstrapDraws - 1 - kBootstrapDraws / 40];
  return interval;
}

}  // namespace kvlane
