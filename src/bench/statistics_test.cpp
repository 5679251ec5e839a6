// Percentiles and summaries against values worked out by hand (and equal to NumPy's).
// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

TEST(Percentile, InterpolatesBetweenTheNearestTwo) {
  const std::vector<double> sorted = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 100), 8);
  EXPECT_DOUBLE_EQ(percentile(sorted, 50), 3);
  EXPECT_DOUBLE_EQ(percentile(sorted, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile(sorted, 99), 7.88);
}

TEST(Percentile, OfOneValueIsThatValue) {
  const std::vector<double> sorted = {5};
  for (const double percent : {0.0, 37.0, 100.0}) EXPECT_EQ(percentile(sorted, percent), 5);
}

TEST(Summary, OfUnsortedValues) {
  const std::vector<double> percents = {99, 50};
  const Summary summary = summarise({8, 1, 4, 2}, percents);
  EXPECT_EQ(summary.count, 4u);
  EXPECT_DOUBLE_EQ(summary.mean, 3.75);
  EXPECT_DOUBLE_EQ(summary.median, 3);
  EXPECT_DOUBLE_EQ(summary.max, 8);
  EXPECT_DOUBLE_EQ(summary.stddev * summary.stddev, 7.1875);  // divided by n, not n - 1
  ASSERT_EQ(summary.percentiles.size(), 2u);
  EXPECT_EQ(summary.percentiles[0].first, 99);
  EXPECT_DOUBLE_EQ(summary.percentiles[0].second, 7.88);
  EXPECT_DOUBLE_EQ(summary.percentiles[1].second, summary.median);
}

TEST(Summary, OfNothingIsZero) {
  const std::vector<double> percents = {99};
  const Summary summary = summarise({}, percents);
  EXPECT_EQ(summary.count, 0u);
  EXPECT_EQ(summary.mean, 0);
  ASSERT_EQ(summary.percentiles.size(), 1u);
  EXPECT_EQ(summary.percentiles[0].second, 0);
}

}  // namespace
}  // namespace kvlane
