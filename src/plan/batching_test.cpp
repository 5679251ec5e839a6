// Steps keep the promised pace, and every prompt gets on.
// SPDX-License-Identifier: Apache-2.0
#include "plan/batching.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace kvlane {
namespace {

std::vector<int> share(const std::vector<int>& missing, int budget, unsigned turn = 0) {
  std::vector<int> tokens(missing.size(), -1);
  share_step(missing, budget, turn, tokens);
  return tokens;
}

TEST(ShareStep, GivesWhoMissesOneTokenThatOne) {
  EXPECT_EQ(share({1, 1, 1}, 0), (std::vector{1, 1, 1}));
  EXPECT_EQ(share({1, 50, 1}, 20), (std::vector{1, 20, 1}));
}

TEST(ShareStep, GivesHalfToTheFirstAndTheRestInEqualParts) {
  EXPECT_EQ(share({1000, 1000, 1000}, 64), (std::vector{32, 16, 16}));
  EXPECT_EQ(share({1000, 4, 1000}, 64), (std::vector{32, 4, 28}));
  EXPECT_EQ(share({10, 1000, 1000}, 64), (std::vector{10, 27, 27}));
  EXPECT_EQ(share({10, 3, 5}, 64), (std::vector{10, 3, 5}));
}

TEST(ShareStep, SpendsTheBudgetAsFarAsAnybodyNeedsIt) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> missing(1 + random() % 20);
    for (int& tokens : missing) tokens = 1 + static_cast<int>(random() % (random() % 2 ? 4 : 400));
    const int budget = static_cast<int>(random() % 300);
    const std::vector<int> tokens = share(missing, budget, static_cast<unsigned>(round));
    int wanted = 0;
    int given = 0;
    for (std::size_t i = 0; i < missing.size(); ++i) {
      ASSERT_GE(tokens[i], 0);
      ASSERT_LE(tokens[i], missing[i]);
      if (missing[i] == 1) {
        ASSERT_EQ(tokens[i], 1);
        continue;
      }
      wanted += missing[i];
      given += tokens[i];
    }
    ASSERT_EQ(given, std::min(wanted, budget));
  }
}

TEST(ShareStep, LetsNobodyStarveWhenThereAreMoreThanTokens) {
  std::vector<int> missing(40, 100000);
  std::vector<int> had(40, 0);
  for (unsigned turn = 0; turn < 400; ++turn) {
    const std::vector<int> tokens = share(missing, 16, turn);
    for (int i = 0; i < 40; ++i) had[i] += tokens[i];
  }
  EXPECT_GE(*std::min_element(had.begin(), had.end()), 50);
  EXPECT_GE(had[0], 400 * 8);
}

// A machine where each answer costs nothing extra and each prompt token `token` seconds.
struct Machine {
  double answers = 0.050;
  double token = 0.004;
  double step(int prompt_tokens) const { return answers + token * prompt_tokens; }
};

TEST(PromptBudget, KeepsThePromisedPace) {
  for (const double slowdown : {1.25, 2.0, 4.0}) {
    const Machine machine;
    StepPace pace;
    double mixed = 0;
    int steps = 0;
    int prompt_tokens = 0;
    for (int i = 0; i < 300; ++i) {
      const int tokens = prompt_budget(pace, 3, slowdown, 512);
      const double seconds = machine.step(tokens);
      pace = learn(pace, {3, tokens, seconds});
      if (i < 10) continue;
      mixed += seconds;
      ++steps;
      prompt_tokens += tokens;
      const double most = std::max(slowdown * machine.answers, machine.step(kPromptTokensMin));
      ASSERT_LE(seconds, most * 1.01) << "slowdown " << slowdown;
    }
    EXPECT_GT(prompt_tokens, steps * kPromptTokensMin * 0.9);
    EXPECT_LE(mixed / steps,
              1.01 * std::max(slowdown * machine.answers, machine.step(kPromptTokensMin)));
  }
}

TEST(PromptBudget, IsEverythingWithoutAnswers) {
  EXPECT_EQ(prompt_budget({}, 0, 2, 512), 512);
  EXPECT_EQ(prompt_budget({0.05, 0.1, 3}, 0, 2, 512), 512);
}

TEST(PromptBudget, LeavesNowAndThenAPlainStepToCompareWith) {
  StepPace pace{0.05, 0.001, 0};
  int plain = 0;
  for (int i = 0; i < 10 * (kMixedStepsMax + 1); ++i) {
    const int tokens = prompt_budget(pace, 2, 2, 512);
    plain += tokens == 0;
    pace = learn(pace, {2, tokens, 0.05 + 0.001 * tokens});
  }
  EXPECT_EQ(plain, 10);
}

TEST(PromptBudget, AdaptsWhenTheMachineGetsSlower) {
  StepPace pace;
  for (int i = 0; i < 100; ++i) pace = learn(pace, {0, 100, 0.1});
  EXPECT_NEAR(pace.prompt_token_seconds, 0.001, 1e-9);
  for (int i = 0; i < 100; ++i) pace = learn(pace, {0, 100, 0.4});
  EXPECT_NEAR(pace.prompt_token_seconds, 0.004, 1e-9);
}

}  // namespace
}  // namespace kvlane
