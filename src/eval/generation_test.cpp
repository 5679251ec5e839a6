// Answers against a plain loop over tokens.
// SPDX-License-Identifier: Apache-2.0
#include "eval/generation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_sanitizers.h"
#include "eval/divergence.h"
#include "eval/eval_fixture.h"

namespace kvlane {
namespace {

std::vector<FormatRunner> make_runners_of(int tokens_max) {
  return take(make_runners(eval_fixture::make_run(), tokens_max));
}

std::vector<std::int32_t> prompt(int tokens) {
  auto text = eval_fixture::text_tokens();
  text.resize(tokens);
  return text;
}

std::vector<std::int32_t> plain_answer(FormatRunner& runner,
                                       const std::vector<std::int32_t>& tokens, int count) {
  runner.clear();
  for (const std::int32_t token : tokens) EXPECT_TRUE(runner.append({&token, 1}, 1).ok());
  std::vector<std::int32_t> answer;
  while (static_cast<int>(answer.size()) < count) {
    answer.push_back(most_likely(runner.logits(0)));
    EXPECT_TRUE(runner.append({&answer.back(), 1}, 1).ok());
  }
  return answer;
}

TEST(Generation, IsTheMostLikelyTokenEachTime) {
  auto runners = make_runners_of(768);
  for (const int length : {1, 64, 511, 512, 513, 600}) {
    const auto expected = plain_answer(runners[0], prompt(length), 20);
    EXPECT_EQ(take(greedy_answer(runners[0], prompt(length), {20, {}, {}})), expected) << length;
    EXPECT_EQ(take(greedy_answer(runners[1], prompt(length), {20, {}, {}})), expected) << length;
  }
}

TEST(Generation, StopsWhereItShould) {
  auto runners = make_runners_of(256);
  const auto all = take(greedy_answer(runners[0], prompt(100), {30, {}, {}}));
  ASSERT_EQ(all.size(), 30U);
  const std::vector<std::int32_t> eos = {all[7]};
  const std::size_t first = std::ranges::find(all, all[7]) - all.begin();
  EXPECT_EQ(take(greedy_answer(runners[0], prompt(100), {30, eos, {}})),
            std::vector(all.begin(), all.begin() + first));
  int told = 0;
  const auto enough = [&](std::int32_t) { return ++told == 5; };
  EXPECT_EQ(take(greedy_answer(runners[0], prompt(100), {30, {}, enough})),
            std::vector(all.begin(), all.begin() + 5));
  EXPECT_TRUE(take(greedy_answer(runners[0], prompt(100), {0, {}, {}})).empty());
  // Exactly full: the last token of an answer is not read again.
  EXPECT_EQ(take(greedy_answer(runners[0], prompt(227), {30, {}, {}})).size(), 30U);
  EXPECT_FALSE(greedy_answer(runners[0], prompt(250), {300, {}, {}}).ok());
}

TEST(Generation, OfEquallyLikelyTokensTheFirstIsTaken) {
  EXPECT_EQ(most_likely(std::vector<float>{1, 3, 2, 3}), 1);
}

TEST(Generation, ScoresAnAnswerTokenByToken) {
  auto runners = make_runners_of(768);
  for (const int length : every_other_if(kSanitized, std::vector{1, 510, 511, 512, 513})) {
    const auto tokens = prompt(length + 7);
    const std::span<const std::int32_t> all(tokens);
    const AnswerScore score =
        take(score_answer(runners[0], all.subspan(0, length), all.subspan(length)));
    AnswerScore expected{.tokens = 7};
    runners[0].clear();
    for (int i = 0; i + 1 < length + 7; ++i) {
      ASSERT_TRUE(runners[0].append(all.subspan(i, 1), 1).ok());
      if (i < length - 1) continue;
      expected.log_probability -= Reference(runners[0].logits(0)).loss(tokens[i + 1]);
      expected.top += most_likely(runners[0].logits(0)) == tokens[i + 1];
    }
    EXPECT_EQ(score.tokens, 7);
    EXPECT_EQ(score.top, expected.top) << length;
    EXPECT_NEAR(score.log_probability, expected.log_probability, 1e-9) << length;
  }
}

TEST(Generation, AGreedyAnswerIsTopEverywhere) {
  auto runners = make_runners_of(256);
  const auto answer = take(greedy_answer(runners[0], prompt(100), {10, {}, {}}));
  EXPECT_TRUE(take(score_answer(runners[0], prompt(100), answer)).is_greedy());
  auto other = answer;
  other[4] += 1;
  EXPECT_FALSE(take(score_answer(runners[0], prompt(100), other)).is_greedy());
}

}  // namespace
}  // namespace kvlane
