// Intervals of shares: a published example, and that they cover what they should.
// SPDX-License-Identifier: Apache-2.0
#include "eval/wilson.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlane {
namespace {

TEST(Wilson, EqualsKnownIntervals) {
  // Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
  const Interval a = wilson_interval(81, 263);
  EXPECT_NEAR(a.low, 0.2553, 5e-5);
  EXPECT_NEAR(a.high, 0.3662, 5e-5);
  const Interval b = wilson_interval(15, 148);
  EXPECT_NEAR(b.low, 0.0624, 5e-5);
  EXPECT_NEAR(b.high, 0.1605, 5e-5);
  const Interval c = wilson_interval(0, 20);
  EXPECT_EQ(c.low, 0);
  EXPECT_NEAR(c.high, 0.1611, 5e-5);
  const Interval d = wilson_interval(1, 29);
  EXPECT_NEAR(d.low, 0.0061, 5e-5);
  EXPECT_NEAR(d.high, 0.1718, 5e-5);
}

TEST(Wilson, IsAMirror) {
  for (const int found : {0, 1, 7, 20}) {
    const Interval one = wilson_interval(found, 20);
    const Interval other = wilson_interval(20 - found, 20);
    EXPECT_NEAR(one.low, 1 - other.high, 1e-15);
    EXPECT_NEAR(one.high, 1 - other.low, 1e-15);
    EXPECT_LE(one.low, one.value);
    EXPECT_GE(one.high, one.value);
  }
}

TEST(Wilson, CoversTheTruthAboutAsOftenAsItSays) {
  // Over all outcomes of 50 trials, by their probability: near 95 % for any true share.
  for (const double truth : {0.05, 0.2, 0.5, 0.9}) {
    double covered = 0;
    for (int found = 0; found <= 50; ++found) {
      const Interval interval = wilson_interval(found, 50);
      if (truth < interval.low || truth > interval.high) continue;
      covered += std::exp(std::lgamma(51) - std::lgamma(found + 1) - std::lgamma(51 - found) +
                          found * std::log(truth) + (50 - found) * std::log(1 - truth));
    }
    EXPECT_GT(covered, 0.92) << truth;
    EXPECT_LT(covered, 0.98) << truth;
  }
}

}  // namespace
}  // namespace kvlane
