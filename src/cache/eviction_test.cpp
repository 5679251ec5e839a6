// Rules of eviction: their notation, budgets, who stays and who goes, and the noise.
// SPDX-License-Identifier: Apache-2.0
#include "cache/eviction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvlane {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string name(const char* text) {
  const auto rule = make_eviction_rule(text);
  return rule.ok() ? rule->name() : rule.status().message();
}

TEST(EvictionRule, NamesSayEveryParameter) {
  EXPECT_EQ(name("h2o"), "h2o:keep=0.5,recent=0.5");
  EXPECT_EQ(name("h2o:recent=0,keep=1"), "h2o:keep=1,recent=0");
  EXPECT_EQ(name("keyformer"), "keyformer:keep=0.6,recent=0.3,tau=1,tau_delta=0.01,seed=0");
  EXPECT_EQ(name("keyformer:tau=2.5,tau_delta=0,seed=7,keep=0.1234"),
            "keyformer:keep=0.1234,recent=0.3,tau=2.5,tau_delta=0,seed=7");
  for (const char* text : {"h2o:keep=0.25,recent=0.125", "keyformer:keep=0.3,tau=100"}) {
    const auto rule = make_eviction_rule(text);
    ASSERT_TRUE(rule.ok());
    EXPECT_EQ(*make_eviction_rule(rule->name()), *rule);
  }
}

TEST(EvictionRule, SaysWhatIsWrong) {
  EXPECT_EQ(name("lru"), "there is no eviction 'lru'; known are h2o, keyformer");
  EXPECT_EQ(name("h2o:tau=1"), "eviction 'h2o' has no parameter 'tau'");
  EXPECT_EQ(name("h2o:keep=0"),
            "eviction 'h2o': keep is a share above 0 and up to 1, with at most four decimals, not "
            "'0'");
  EXPECT_EQ(name("h2o:recent=1.5"),
            "eviction 'h2o': recent is a number from 0 to 1, with at most four decimals, not "
            "'1.5'");
  EXPECT_EQ(name("keyformer:tau=0"),
            "eviction 'keyformer': tau is a number from 0.0001 to 100, with at most four "
            "decimals, not '0'");
  for (const char* text : {"keyformer:tau=nan", "keyformer:tau=1e300", "keyformer:tau=0.00001",
                           "keyformer:tau_delta=-1", "keyformer:seed=-1", "h2o:keep", "h2o+hack"}) {
    EXPECT_FALSE(make_eviction_rule(text).ok()) << text;
  }
}

TEST(EvictionRule, TauGrowsWithEveryToken) {
  const EvictionRule rule = *make_eviction_rule("keyformer:tau=1.5,tau_delta=0.25");
  EXPECT_EQ(rule.temperature(0), 1.5F);
  EXPECT_EQ(rule.temperature(3), 2.25F);
}

TEST(EvictionBudget, IsFixedByThePrompt) {
  const auto of = [](const char* text, int tokens) {
    const EvictionBudget budget = eviction_budget(*make_eviction_rule(text), tokens);
    return std::pair(budget.key, budget.recent);
  };
  EXPECT_EQ(of("keyformer:keep=0.6,recent=0.3", 100), std::pair(42, 18));
  EXPECT_EQ(of("keyformer:keep=0.6,recent=0.3", 99), std::pair(42, 17)) << "59, of them 17.7";
  EXPECT_EQ(of("h2o:keep=1,recent=0", 7), std::pair(7, 0));
  EXPECT_EQ(of("h2o:keep=0.5,recent=1", 7), std::pair(0, 3));
  EXPECT_EQ(of("h2o:keep=0.1", 7), std::pair(1, 0)) << "one stays at least";
  EXPECT_EQ(of("h2o:keep=1,recent=1", 2'000'000'000), std::pair(0, 2'000'000'000));
}

TEST(KeptTokens, AreTheRecentOnesAndTheBestOfTheOthers) {
  using Tokens = std::vector<int>;
  const std::vector<float> scores = {3, 1, 4, 1, 5, 9, 2};
  EXPECT_EQ(kept_tokens(scores, {2, 2}), (Tokens{2, 4, 5, 6}));
  EXPECT_EQ(kept_tokens(scores, {0, 3}), (Tokens{4, 5, 6}));
  EXPECT_EQ(kept_tokens(scores, {3, 0}), (Tokens{2, 4, 5}));
  EXPECT_EQ(kept_tokens(scores, {4, 2}), (Tokens{0, 1, 2, 4, 5, 6})) << "the earlier of equal ones";
  EXPECT_EQ(kept_tokens(scores, {5, 2}), (Tokens{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(kept_tokens(scores, {9, 9}).size(), scores.size());
  EXPECT_EQ(kept_tokens(std::vector<float>{kNaN, 0, kNaN, 1, 0}, {2, 1}), (Tokens{1, 3, 4}));
}

TEST(DiscardedToken, IsTheWorstOfThoseThatAreNotRecent) {
  const std::vector<float> scores = {5, 1, 2, 1, 0.5F};
  const std::vector<std::int32_t> positions = {0, 7, 3, 5, 8};
  EXPECT_EQ(discarded_token(scores, positions, {3, 1}, 8), 1) << "the later of equal ones";
  EXPECT_EQ(discarded_token(scores, positions, {2, 2}, 8), 3);
  EXPECT_EQ(discarded_token(scores, positions, {4, 0}, 8), 4) << "the newest itself";
  EXPECT_EQ(discarded_token(scores, positions, {3, 2}, 8), -1);
  EXPECT_EQ(discarded_token(std::vector<float>{1, kNaN, 0}, std::vector<std::int32_t>{0, 1, 2},
                            {2, 0}, 2),
            1);
}

// What one prompt keeps at once is what goes token by token, whatever the order of slots.
TEST(DiscardedToken, AgreesWithKeptTokens) {
  for (int count = 2; count < 40; ++count) {
    std::vector<float> scores(count);
    for (int i = 0; i < count; ++i) scores[i] = static_cast<float>(i * 7919 % 11);
    for (int recent = 0; recent < count; ++recent) {
      const EvictionBudget budget{count - 1 - recent, recent};
      std::vector<float> mixed(scores.rbegin(), scores.rend());
      std::vector<std::int32_t> positions(count);
      for (int i = 0; i < count; ++i) positions[i] = count - 1 - i;
      const int gone = positions[discarded_token(mixed, positions, budget, count - 1)];
      std::vector<int> expected;
      for (int i = 0; i < count; ++i) {
        if (i != gone) expected.push_back(i);
      }
      EXPECT_EQ(kept_tokens(scores, budget), expected) << count << " " << recent;
    }
  }
}

}  // namespace
}  // namespace kvlane
