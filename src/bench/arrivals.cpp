// Sums of gamma-distributed gaps.
// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <cmath>

#include "bench/random_stream.h"

namespace kvlane {

std::vector<double> open_loop_arrivals(std::size_t count, double rate, double burstiness,
                                       std::uint64_t seed) {
  std::vector<double> arrivals(count, 0.0);
  if (std::isinf(rate) || count == 0) return arrivals;
  RandomStream random(seed, Purpose::kArrivals, 0);
  double sum = 0;
  for (double& arrival : arrivals) {
    sum += std::isinf(burstiness) ? 1.0 : random.gamma(burstiness);
    arrival = sum;
  }
  // Gaps this bursty can all round to nothing: then the requests come together.
  if (sum <= 0) return arrivals;
  const double scale = static_cast<double>(count) / rate / sum;
  for (double& arrival : arrivals) arrival *= scale;
  return arrivals;
}

}  // namespace kvlane
