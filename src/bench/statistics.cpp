// One pass for the mean, one for the deviation, one sort.
// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlane {

double percentile(std::span<const double> sorted, double percent) {
  const double position = percent / 100 * static_cast<double>(sorted.size() - 1);
  const std::size_t below = std::min(static_cast<std::size_t>(position), sorted.size() - 1);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

Summary summarise(std::vector<double> values, std::span<const double> percents) {
  Summary summary;
  summary.count = values.size();
  if (values.empty()) {
    for (const double percent : percents) summary.percentiles.emplace_back(percent, 0);
    return summary;
  }
  std::sort(values.begin(), values.end());
  const double count = static_cast<double>(values.size());
  summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - summary.mean) * (value - summary.mean);
  summary.stddev = std::sqrt(squares / count);
  summary.median = percentile(values, 50);
  summary.max = values.back();
  for (const double percent : percents) {
    summary.percentiles.emplace_back(percent, percentile(values, percent));
  }
  return summary;
}

}  // namespace kvlane
