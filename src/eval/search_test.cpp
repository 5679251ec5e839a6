// The search against trying everything, and what it says where its assumption fails.
// SPDX-License-Identifier: Apache-2.0
#include "eval/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/test_results.h"

namespace kvlane {
namespace {

SearchResult search(const std::vector<double>& kept, double retain, double half = 0) {
  return take(search_strongest(
      static_cast<int>(kept.size()), retain,
      [&](int setting) -> Result<Interval> {
        return Interval{kept[setting], kept[setting] - half, kept[setting] + half};
      },
      [](int setting) { return "s" + std::to_string(setting); }));
}

TEST(Search, FindsTheStrongestThatKeepsEnough) {
  for (int count = 1; count <= 40; ++count) {
    std::vector<double> kept;
    for (int i = 0; i < count; ++i) kept.push_back((i + 1.0) / count);
    for (int strongest = 0; strongest < count; ++strongest) {
      const SearchResult result = search(kept, kept[strongest]);
      ASSERT_EQ(result.found, strongest) << count;
      EXPECT_LE(result.steps.size(), std::ceil(std::log2(count)) + 1) << count;
      EXPECT_TRUE(result.doubts.empty());
      std::set<int> measured;
      for (const SearchStep& step : result.steps) measured.insert(step.setting);
      EXPECT_EQ(measured.size(), result.steps.size()) << "nothing twice";
    }
  }
}

TEST(Search, SaysWhenNothingKeepsEnough) {
  const SearchResult result = search({0.1, 0.2, 0.3}, 0.5);
  EXPECT_FALSE(result.found.has_value());
  EXPECT_EQ(result.steps.size(), 1U);
  EXPECT_EQ(result.doubts, std::vector<std::string>{"stronger settings were not measured"});
  EXPECT_TRUE(search({0.1}, 0.5).doubts.empty());
}

TEST(Search, SaysWhereQualityDoesNotGrow) {
  // Measured: 4, 1, 0.
  const std::vector<double> kept = {0.1, 0.99, 0.6, 0.7, 0.95};
  const SearchResult sure = search(kept, 0.9, 0.001);
  EXPECT_EQ(sure.found, 1);
  ASSERT_EQ(sure.doubts.size(), 1U);
  EXPECT_EQ(sure.doubts[0],
            "s1 kept more than the weaker s4: quality does not grow along these settings, so "
            "others that were not measured may be better");
  const SearchResult unsure = search(kept, 0.9, 0.05);
  ASSERT_EQ(unsure.doubts.size(), 1U);
  EXPECT_EQ(unsure.doubts[0], "s1 kept more than the weaker s4, but within their intervals");
}

TEST(Search, SaysWhereIntervalsReachAcross) {
  const SearchResult result = search({0.5, 0.895, 0.91, 0.99}, 0.9, 0.02);
  EXPECT_EQ(result.found, 2);
  ASSERT_EQ(result.doubts.size(), 2U);
  EXPECT_EQ(result.doubts[0],
            "the interval of the stronger s1 reaches up to 0.915: with more text it might do");
  EXPECT_EQ(result.doubts[1], "the interval of s2 reaches down to 0.89, below 0.9");
}

TEST(Search, PassesErrorsOn) {
  const auto failing = search_strongest(
      3, 0.5, [](int) -> Result<Interval> { return invalid_argument("no"); },
      [](int) { return std::string(); });
  EXPECT_EQ(failing.status().message(), "no");
}

TEST(Search, QualityIsAShareThatIsOneWithoutLoss) {
  EvalReport report;
  report.measures = {{"text", "f", "ratio", {1.25, 1, 2}, ""},
                     {"text", "f", "agreement", {0.5, 0.25, 0.75}, ""},
                     {"text", "f", "divergence", {std::log(2), 0, std::log(4)}, ""}};
  const Interval perplexity = take(kept_quality(report, "f", SearchMetric::kPerplexity));
  EXPECT_EQ(perplexity.value, 0.8);
  EXPECT_EQ(perplexity.low, 0.5);
  EXPECT_EQ(perplexity.high, 1);
  EXPECT_EQ(take(kept_quality(report, "f", SearchMetric::kAgreement)).low, 0.25);
  const Interval divergence = take(kept_quality(report, "f", SearchMetric::kDivergence));
  EXPECT_NEAR(divergence.value, 0.5, 1e-15);
  EXPECT_NEAR(divergence.low, 0.25, 1e-15);
  EXPECT_EQ(divergence.high, 1);
  EXPECT_FALSE(kept_quality(report, "g", SearchMetric::kAgreement).ok());
}

TEST(Search, ValuesGoIntoThePattern) {
  EXPECT_EQ(take(fill_pattern("kivi:bits=2,recent={}", "4")), "kivi:bits=2,recent=4");
  EXPECT_FALSE(fill_pattern("kivi", "4").ok());
  EXPECT_FALSE(fill_pattern("a={},b={}", "4").ok());
}

TEST(Search, ValuesAreSpreadEvenly) {
  using Values = std::vector<std::string>;
  EXPECT_EQ(spread_values(0, 8, 5), (Values{"0", "2", "4", "6", "8"}));
  EXPECT_EQ(spread_values(8, 2, 3), (Values{"8", "5", "2"}));
  EXPECT_EQ(spread_values(0, 2, 9), (Values{"0", "1", "2"}));
  EXPECT_EQ(spread_values(0, 0.5, 3), (Values{"0", "0.25", "0.5"}));
}

}  // namespace
}  // namespace kvlane
