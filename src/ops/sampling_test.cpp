// Sampling: greedy rules, truncation against a plain reference, and frequencies against the
// distribution.
// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/random.h"
#include "ops/greedy_fixture.h"

namespace kvlane {
namespace {

using greedy_fixture::kNan;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What can be drawn, by sorting everything: the definition that sample_token() has to meet.
std::set<std::int32_t> reference_kept(const std::vector<float>& logits,
                                      const SamplingParams& params) {
  std::vector<std::int32_t> ranking;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) ranking.push_back(static_cast<std::int32_t>(i));
  }
  std::stable_sort(ranking.begin(), ranking.end(),
                   [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[ranking[0]]) / params.temperature);
  };
  std::erase_if(ranking, [&](std::int32_t id) { return !(weight(id) > std::exp(-64)); });
  const float best = logits[ranking[0]];
  std::erase_if(ranking,
                [&](std::int32_t id) { return logits[id] != best && weight(id) < params.min_p; });
  if (params.top_k > 0) ranking.resize(std::min<std::size_t>(ranking.size(), params.top_k));
  double total = 0;
  for (const std::int32_t id : ranking) total += weight(id);
  std::set<std::int32_t> kept;
  double mass = 0;
  for (const std::int32_t id : ranking) {
    kept.insert(id);
    mass += weight(id);
    if (params.top_p < 1 && mass >= params.top_p * total) break;
  }
  return kept;
}

// The kept token at which the running sum in the order of ids passes the random number.
std::int32_t reference_sample(const std::vector<float>& logits, const SamplingParams& params,
                              const SamplingKey& key, int position) {
  const std::set<std::int32_t> kept = reference_kept(logits, params);
  double best = -kInfinity;
  for (const std::int32_t id : kept) best = std::max<double>(best, logits[id]);
  const auto weight = [&](std::int32_t id) {
    return std::exp((logits[id] - best) / params.temperature);
  };
  double rest = 0;
  for (const std::int32_t id : kept) rest += weight(id);
  const PhiloxCounter words =
      philox4x32(key.seed, {static_cast<std::uint32_t>(position), key.choice, 0, 0});
  rest *= uniform_unit(words[0], words[1]);
  for (const std::int32_t id : kept) {
    rest -= weight(id);
    if (rest < 0) return id;
  }
  return *kept.rbegin();
}

TEST(Sampling, EqualsThePlainReference) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  const std::vector<SamplingParams> all = {
      {},
      {.temperature = 0.3F},
      {.temperature = 2},
      {.temperature = 0.01F},
      {.min_p = 0.02F},
      {.min_p = 1},
      {.top_k = 1},
      {.top_k = 7},
      {.top_k = 3000},
      {.top_p = 0},
      {.top_p = 0.5F},
      {.top_p = 0.95F},
      {.temperature = 0.7F, .min_p = 0.001F, .top_k = 40, .top_p = 0.9F}};
  for (const std::size_t vocabulary : {1, 5, 511, 512, 513, 5000}) {
    std::vector<float> logits(vocabulary);
    // Coarse values, so that there are ties at the edges of what is kept.
    for (float& logit : logits) logit = std::round(normal(random) * 8) / 8;
    if (vocabulary > 4) logits[3] = kNan, logits[4] = -kInfinity;
    for (const SamplingParams& params : all) {
      for (int position = 0; position < 40; ++position) {
        EXPECT_EQ(sample_token(logits, params, {11}, position),
                  reference_sample(logits, params, {11}, position))
            << "vocabulary " << vocabulary << " temperature " << params.temperature << " min_p "
            << params.min_p << " top_k " << params.top_k << " top_p " << params.top_p;
      }
    }
  }
}

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

TEST(Sampling, MinPIsRelativeToTheBestToken) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F),
                                     std::log(0.05F)};
  std::set<std::int32_t> drawn;
  for (int position = 0; position < 2000; ++position) {
    drawn.insert(sample_token(logits, {.min_p = 0.29F}, {7}, position));
  }
  EXPECT_EQ(drawn, (std::set<std::int32_t>{0, 1, 2}));
}

TEST(Sampling, ChoicesDrawApart) {
  const std::vector<float> logits(50, 0.0F);
  int different = 0;
  for (int position = 0; position < 100; ++position) {
    different +=
        sample_token(logits, {}, {9, 0}, position) != sample_token(logits, {}, {9, 1}, position);
  }
  EXPECT_GT(different, 80);
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
  EXPECT_EQ(sample_token(std::vector<float>{kNan, -kInfinity}, {.temperature = 1}, {}, 3), 1);
  // The rest of the range of float is no infinity.
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(sample_token(std::vector<float>{-kLargest, kLargest, kNan}, {}, {}, 3), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-kInfinity, -kLargest}, {.temperature = 2}, {}, 3), 1);
}

TEST(AdjustLogits, DoesNothingUnlessAsked) {
  std::vector<float> logits = {1, -2, kNan, kInfinity};
  adjust_logits(logits, {}, std::vector<std::int32_t>{0, 1}, std::vector<std::int32_t>{1}, {});
  EXPECT_EQ(logits[0], 1);
  EXPECT_EQ(logits[1], -2);
  EXPECT_TRUE(std::isnan(logits[2]));
  EXPECT_EQ(logits[3], kInfinity);
}

TEST(AdjustLogits, AppliesEachParameterInItsOrder) {
  SamplingParams params{.logit_bias = {{0, 3}, {4, -100}},
                        .repetition_penalty = 2,
                        .frequency_penalty = 0.5F,
                        .presence_penalty = 0.25F};
  std::vector<float> logits = {1, -1, 6, 5, 0, 7};
  const std::vector<std::int32_t> prompt = {0, 0, 1};
  const std::vector<std::int32_t> answer = {2, 1, 2, 2};
  const std::vector<std::int32_t> banned = {5};
  adjust_logits(logits, params, prompt, answer, banned);
  EXPECT_FLOAT_EQ(logits[0], (1 + 3) / 2.0F);               // bias first; prompt: repetition alone
  EXPECT_FLOAT_EQ(logits[1], -1 * 2 - 0.5F - 0.25F);        // in both: repetition once
  EXPECT_FLOAT_EQ(logits[2], 6 / 2.0F - 3 * 0.5F - 0.25F);  // three times in the answer
  EXPECT_FLOAT_EQ(logits[3], 5);
  EXPECT_FLOAT_EQ(logits[4], -100);
  EXPECT_EQ(logits[5], -kInfinity);
}

TEST(AdjustLogits, NegativePenaltiesFavourWhatWasThere) {
  std::vector<float> logits = {0, 0, 0};
  adjust_logits(logits, {.frequency_penalty = -1, .presence_penalty = -2}, {},
                std::vector<std::int32_t>{1, 1}, {});
  EXPECT_EQ(logits, (std::vector<float>{0, 4, 0}));
}

TEST(AdjustLogits, ABannedTokenIsNotDrawnWhateverItsBias) {
  std::vector<float> logits = {0, 1, 2};
  const std::vector<std::int32_t> banned = {2, 1};
  adjust_logits(logits, {.logit_bias = {{2, 100}}}, {}, {}, banned);
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(sample_token(logits, {}, {3}, position), 0);
  }
}

TEST(TokenLogprobs, AreTheSoftmax) {
  const std::vector<float> logits = {1, 3, -2, 3, 0.5F};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const TokenLogprobs found = token_logprobs(logits, 4, 3);
  EXPECT_FLOAT_EQ(found.logprob, static_cast<float>(0.5 - std::log(sum)));
  ASSERT_EQ(found.top.size(), 3U);
  const std::vector<std::int32_t> ids = {1, 3, 0};  // of equal ones the lower id first
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(found.top[i].token, ids[i]);
    EXPECT_FLOAT_EQ(found.top[i].logprob, static_cast<float>(logits[ids[i]] - std::log(sum)));
  }
  EXPECT_TRUE(token_logprobs(logits, 4, 0).top.empty());
  EXPECT_EQ(token_logprobs(logits, 4, 0).logprob, found.logprob);
  EXPECT_EQ(token_logprobs(logits, 4, 20).top.size(), logits.size());
}

TEST(TokenLogprobs, AreExactWhereFloatsWouldOverflow) {
  const std::vector<float> logits(1000, 3e38F);
  EXPECT_FLOAT_EQ(token_logprobs(logits, 5, 1).logprob, static_cast<float>(-std::log(1000.0)));
}

TEST(TokenLogprobs, SurviveLogitsWithoutADistribution) {
  EXPECT_EQ(token_logprobs(std::vector<float>{kNan, kNan}, 0, 2), (TokenLogprobs{-kInfinity, {}}));
  EXPECT_EQ(token_logprobs(std::vector<float>{kNan, 2, -kInfinity}, 0, 2),
            (TokenLogprobs{-kInfinity, {{1, 0}, {2, -kInfinity}}}));
  EXPECT_EQ(token_logprobs(std::vector<float>{0, kInfinity}, 1, 2),
            (TokenLogprobs{0, {{1, 0}, {0, -kInfinity}}}));
  EXPECT_EQ(token_logprobs(std::vector<float>{-kInfinity, -kInfinity}, 1, 1),
            (TokenLogprobs{-kInfinity, {{0, -kInfinity}}}));
}

TEST(Sampling, TakesTheBestLogitOnlyWhereNothingChangesLogits) {
  const SamplingParams greedy{.temperature = 0, .min_p = 0.5F, .top_k = 3, .top_p = 0.1F};
  EXPECT_TRUE(takes_best_logit(greedy));
  EXPECT_FALSE(takes_best_logit({}));
  SamplingParams others[] = {greedy, greedy, greedy, greedy};
  others[0].logit_bias = {{1, 2}};
  others[1].repetition_penalty = 1.1F;
  others[2].frequency_penalty = -0.1F;
  others[3].presence_penalty = 0.1F;
  for (const SamplingParams& other : others) EXPECT_FALSE(takes_best_logit(other));
}

}  // namespace
}  // namespace kvlane
