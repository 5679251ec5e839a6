// Open loops: their rate, their burstiness, their edges.
// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlane {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kCount = 20000;

// Squared coefficient of variation of the gaps: 1 for a Poisson process, 1/shape for gamma.
double variation(const std::vector<double>& arrivals) {
  double sum = 0;
  double squares = 0;
  double last = 0;
  for (const double arrival : arrivals) {
    sum += arrival - last;
    squares += (arrival - last) * (arrival - last);
    last = arrival;
  }
  const double count = static_cast<double>(arrivals.size());
  const double mean = sum / count;
  return squares / count / (mean * mean) - 1;
}

TEST(Arrivals, KeepTheirRateAndAscend) {
  const std::vector<double> arrivals = open_loop_arrivals(kCount, 8, 1, 3);
  ASSERT_EQ(arrivals.size(), kCount);
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  EXPECT_GT(arrivals.front(), 0);
  EXPECT_NEAR(arrivals.back(), kCount / 8.0, 1e-6);
}

TEST(Arrivals, ArePoissonOrAsBurstyAsAskedFor) {
  EXPECT_NEAR(variation(open_loop_arrivals(kCount, 8, 1, 3)), 1, 0.1);
  EXPECT_NEAR(variation(open_loop_arrivals(kCount, 8, 0.25, 3)), 4, 0.8);
  EXPECT_NEAR(variation(open_loop_arrivals(kCount, 8, 4, 3)), 0.25, 0.03);
}

TEST(Arrivals, OfInfiniteBurstinessAreEven) {
  const std::vector<double> arrivals = open_loop_arrivals(4, 2, kInfinity, 0);
  EXPECT_EQ(arrivals, (std::vector<double>{0.5, 1, 1.5, 2}));
}

TEST(Arrivals, OfAnInfiniteRateAreAtOnce) {
  EXPECT_EQ(open_loop_arrivals(3, kInfinity, 1, 0), std::vector<double>(3, 0.0));
}

TEST(Arrivals, DependOnTheSeedAlone) {
  EXPECT_EQ(open_loop_arrivals(10, 1, 1, 5), open_loop_arrivals(10, 1, 1, 5));
  EXPECT_NE(open_loop_arrivals(10, 1, 1, 5), open_loop_arrivals(10, 1, 1, 6));
}

TEST(Arrivals, OfNobodyAreNone) { EXPECT_TRUE(open_loop_arrivals(0, 1, 1, 0).empty()); }

}  // namespace
}  // namespace kvlane
