// Confidence intervals by the paired bootstrap: windows are drawn again and again, the same draw
// for both sides of a comparison.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace kvlane {

struct Interval {
  double value = 0;  // of the whole sample
  double low = 0;    // 2.5 % of draws are below
  double high = 0;   // 2.5 % are above
};
// In the place of `low` and `high` of a value that was not drawn.
inline constexpr double kNoInterval = std::numeric_limits<double>::quiet_NaN();

inline constexpr int kBootstrapDraws = 2000;

// The statistic of a sample of `items` items, of which item i counts weights[i] times.
using Statistic = std::function<double(std::span<const int> weights)>;

// The percentile interval (95 %) over kBootstrapDraws draws with replacement. The same seed gives
// the same draws, so intervals of two statistics over the same items are paired. items >= 1.
Interval bootstrap(int items, const Statistic& statistic, std::uint64_t seed);

}  // namespace kvlane
