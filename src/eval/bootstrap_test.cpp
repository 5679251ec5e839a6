// Intervals: that they cover what they should as often as they should.
// SPDX-License-Identifier: Apache-2.0
#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

double draw(std::uint64_t seed, std::uint32_t i) {
  double sum = -6;  // of twelve: nearly a standard normal
  for (std::uint32_t part = 0; part < 3; ++part) {
    for (const std::uint32_t die : philox4x32(seed, {i, part, 0, 0})) sum += die * 0x1p-32;
  }
  return sum;
}

// The mean of values under weights.
Statistic mean_of(const std::vector<double>& values) {
  return [&values](std::span<const int> weights) {
    double sum = 0;
    double count = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      sum += weights[i] * values[i];
      count += weights[i];
    }
    return sum / count;
  };
}

TEST(Bootstrap, IntervalsOfAMeanAreThoseOfTheory) {
  constexpr int kItems = 400;
  std::vector<double> values(kItems);
  for (std::uint32_t i = 0; i < kItems; ++i) values[i] = 5 + draw(1, i);
  const Interval interval = bootstrap(kItems, mean_of(values), 9);
  const double half = 1.96 / std::sqrt(kItems);
  EXPECT_NEAR(interval.high - interval.low, 2 * half, 0.3 * half);
  EXPECT_LT(interval.low, interval.value);
  EXPECT_GT(interval.high, interval.value);
}

TEST(Bootstrap, ShuffledLabelsShowNoDifference) {
  // Which of two results of an item belongs to which side is thrown by a coin: 95 % of intervals of
  // their difference hold zero. 200 trials: 190 expected, 4 standard deviations are 12.3.
  int held = 0;
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    constexpr int kItems = 60;
    std::vector<double> differences(kItems);
    for (std::uint32_t i = 0; i < kItems; ++i) {
      const double gap = 0.5 + draw(trial, 1000 + i);
      differences[i] = philox4x32(trial, {i, 77, 0, 0})[0] % 2 == 0 ? gap : -gap;
    }
    const Interval interval = bootstrap(kItems, mean_of(differences), trial);
    held += interval.low <= 0 && interval.high >= 0;
  }
  EXPECT_GE(held, 177);
  EXPECT_LT(held, 200) << "intervals that always hold are too wide";
}

TEST(Bootstrap, ARealDifferenceShows) {
  std::vector<double> differences(60);
  for (std::uint32_t i = 0; i < 60; ++i) differences[i] = 1 + draw(4, i);
  EXPECT_GT(bootstrap(60, mean_of(differences), 1).low, 0);
}

TEST(Bootstrap, TheSameSeedGivesTheSameInterval) {
  const std::vector<double> values = {1, 2, 5, 9};
  const Interval a = bootstrap(4, mean_of(values), 3);
  const Interval b = bootstrap(4, mean_of(values), 3);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_EQ(a.value, 4.25);
}

TEST(Bootstrap, OneItemHasNoSpread) {
  const std::vector<double> values = {3};
  const Interval interval = bootstrap(1, mean_of(values), 3);
  EXPECT_EQ(interval.low, 3);
  EXPECT_EQ(interval.high, 3);
}

}  // namespace
}  // namespace kvlane
