// Wilson, Journal of the American Statistical Association 22 (1927).
// SPDX-License-Identifier: Apache-2.0
#include "eval/wilson.h"

#include <algorithm>
#include <cmath>

namespace kvlane {

Interval wilson_interval(int successes, int trials) {
  constexpr double kZ = 1.959963984540054;  // of the normal distribution at 97.5 %
  const double n = trials;
  const double share = successes / n;
  const double middle = (share + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half =
      kZ / (1 + kZ * kZ / n) * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  // Rounding may leave an end a hair outside, or the share itself.
  return {share, std::clamp(middle - half, 0.0, share), std::clamp(middle + half, share, 1.0)};
}

}  // namespace kvlane
