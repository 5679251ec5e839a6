// Sampling: greedy rules, truncation, and frequencies against the distribution.
// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace kvlane {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Sampling, GreedyTakesTheFirstOfEqualsAndSkipsNan) {
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3, 2}, greedy, {}, 0), 1);
  EXPECT_EQ(sample_token(std::vector<float>{kNan, -5, kNan}, greedy, {}, 0), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-kInfinity, -kInfinity}, greedy, {}, 0), 0);
}

TEST(Sampling, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0, 1, 2, -1};
  SamplingParams params{.temperature = 0.8F};
  constexpr int kDraws = 20000;
  std::map<int, int> counts;
  for (int position = 0; position < kDraws; ++position) {
    ++counts[sample_token(logits, params, {42}, position)];
  }
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / 0.8);
  for (int id = 0; id < 4; ++id) {
    const double p = std::exp(logits[id] / 0.8) / total;
    const double sigma = std::sqrt(kDraws * p * (1 - p));
    EXPECT_NEAR(counts[id], kDraws * p, 4 * sigma) << id;
  }
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F),
                                     std::log(0.05F)};
  for (int position = 0; position < 2000; ++position) {
    EXPECT_LT(sample_token(logits, {.top_k = 2}, {7}, position), 2);
    EXPECT_LT(sample_token(logits, {.top_p = 0.79F}, {7}, position), 2);
    EXPECT_EQ(sample_token(logits, {.top_p = 0.1F}, {7}, position), 0);
    EXPECT_EQ(sample_token(logits, {.top_k = 1}, {7}, position), 0);
  }
}

TEST(Sampling, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(50, 0.0F);
  int different = 0;
  for (int position = 0; position < 100; ++position) {
    const SamplingParams params;
    const std::int32_t token = sample_token(logits, params, {9}, position);
    EXPECT_EQ(token, sample_token(logits, params, {9}, position));
    different += token != sample_token(logits, params, {10}, position);
  }
  EXPECT_GT(different, 80);
}

TEST(Sampling, SurvivesLogitsWithoutADistribution) {
  EXPECT_EQ(sample_token(std::vector<float>{kNan, kNan}, {.temperature = 1}, {}, 3), 0);
  EXPECT_EQ(sample_token(std::vector<float>{0, kInfinity}, {.temperature = 1}, {}, 3), 1);
}

}  // namespace
}  // namespace kvlane
