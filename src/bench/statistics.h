// Means, deviations and percentiles of samples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace kvlane {

// The value below which `percent` (0 ... 100) of the sample lies: linear interpolation between the
// two nearest of n sorted values, which stand at 0, 1/(n-1) ... 1. NumPy's default and so vLLM's;
// Hyndman and Fan's type 7. `sorted` is ascending and not empty.
double percentile(std::span<const double> sorted, double percent);

struct Summary {
  std::size_t count = 0;
  double mean = 0;
  double median = 0;
  double stddev = 0;  // of the sample itself (divided by n), as NumPy's default
  double max = 0;
  std::vector<std::pair<double, double>> percentiles;  // (percent, value), in the order asked for
};

// All zero for an empty sample.
Summary summarise(std::vector<double> values, std::span<const double> percents);

}  // namespace kvlane
