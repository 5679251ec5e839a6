// Signposts: where theory says that they are.
// SPDX-License-Identifier: Apache-2.0
#include "calib/signposts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

UnitHistogram normal(double deviation) {
  UnitHistogram histogram;
  for (int bin = 0; bin < UnitHistogram::kBins; ++bin) {
    const double x = UnitHistogram::middle(bin);
    histogram.add(static_cast<float>(x), std::exp(-x * x / (2 * deviation * deviation)));
  }
  return histogram;
}

// Max (1960): the best four levels of a normal distribution.
TEST(Signposts, AreTheBestOnesOfANormalDistribution) {
  const auto found = find_signposts(normal(0.1), 4);
  const double expected[] = {-0.1510, -0.04528, 0.04528, 0.1510};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 2e-3);
  const auto eight = find_signposts(normal(0.1), 8);
  EXPECT_NEAR(eight[7], 0.2152, 5e-3);
  EXPECT_NEAR(eight[4], 0.02451, 2e-3);
}

TEST(Signposts, FindEveryClusterThatThereIs) {
  UnitHistogram histogram;
  for (const float x : {-0.9F, -0.2F, 0.1F, 0.7F}) histogram.add(x, 3);
  const auto found = find_signposts(histogram, 4);
  const double expected[] = {-0.9, -0.2, 0.1, 0.7};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-3);
}

// Against every way to cut a few values into runs.
TEST(Signposts, LeaveTheLeastError) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    UnitHistogram histogram;
    std::vector<std::pair<double, double>> values;  // and weights, which differ by powers of two
    for (std::uint32_t i = 0; i < 12; ++i) {
      const auto dice = philox4x32(seed, {i, 0, 0, 0});
      const auto bin = static_cast<int>(dice[0] % UnitHistogram::kBins);
      const double x = UnitHistogram::middle(bin);
      const double weight = std::exp2(dice[1] % 20);
      histogram.add(static_cast<float>(x), weight);
      values.emplace_back(x, weight);
    }
    const auto error_of = [&](const std::vector<double>& levels) {
      double error = 0;
      for (const auto& [x, weight] : values) {
        double least = 4;
        for (const double level : levels) least = std::min(least, (x - level) * (x - level));
        error += weight * least;
      }
      return error;
    };
    std::ranges::sort(values);
    double best = std::numeric_limits<double>::infinity();
    for (int a = 1; a < 12; ++a) {
      for (int b = a + 1; b < 12; ++b) {
        std::vector<double> levels;
        for (const auto& [from, to] : {std::pair(0, a), std::pair(a, b), std::pair(b, 12)}) {
          double sum = 0, total = 0;
          for (int i = from; i < to; ++i) {
            sum += values[i].first * values[i].second;
            total += values[i].second;
          }
          levels.push_back(sum / total);
        }
        best = std::min(best, error_of(levels));
      }
    }
    const std::vector<double> found = find_signposts(histogram, 3);
    EXPECT_TRUE(std::ranges::is_sorted(found));
    EXPECT_NEAR(error_of(found), best, 1e-9 * best) << seed;
  }
}

TEST(Signposts, OfNothingOrOneValueAreAscendingNumbers) {
  UnitHistogram histogram;
  EXPECT_EQ(find_signposts(histogram, 4), (std::vector<double>{-0.75, -0.25, 0.25, 0.75}));
  histogram.add(0.3F, 1);
  for (const double signpost : find_signposts(histogram, 16)) EXPECT_NEAR(signpost, 0.3, 1e-3);
  histogram.add(-5.0F, 1);
  histogram.add(5.0F, 1);
  EXPECT_NEAR(find_signposts(histogram, 4).front(), -1, 1e-3);
}

TEST(Signposts, NormalisedLevelsHaveMeanAndDeviationOfTheValues) {
  UnitHistogram histogram = normal(0.2);
  histogram.add(0.9F, 100);
  const auto signposts = find_signposts(histogram, 4);
  const auto levels = normalise_levels(histogram, signposts);
  double weight = 0;
  double sums[2] = {};
  double squares[2] = {};
  for (int bin = 0; bin < UnitHistogram::kBins; ++bin) {
    const double x = UnitHistogram::middle(bin);
    std::size_t nearest = 0;
    for (std::size_t i = 1; i < 4; ++i) {
      if (std::abs(x - signposts[i]) < std::abs(x - signposts[nearest])) nearest = i;
    }
    const double by = histogram.weights()[bin];
    weight += by;
    sums[0] += by * x;
    squares[0] += by * x * x;
    sums[1] += by * levels[nearest];
    squares[1] += by * levels[nearest] * levels[nearest];
  }
  EXPECT_NEAR(sums[0] / weight, sums[1] / weight, 1e-9);
  EXPECT_NEAR(squares[0] / weight, squares[1] / weight, 1e-9);
}

}  // namespace
}  // namespace kvlane
