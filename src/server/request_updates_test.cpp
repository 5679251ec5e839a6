// Updates merged for slow clients: choices stay apart and whole.
// SPDX-License-Identifier: Apache-2.0
#include "server/request_updates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/event_loop.h"
#include "server/fake_engine.h"

namespace kvlane {
namespace {

using testing::ElementsAre;

Update token(int choice, std::int32_t id) {
  Update update;
  update.choice = choice;
  update.tokens = {id};
  update.logprobs = {{static_cast<float>(-id), {}}};
  update.text = std::to_string(id) + " ";
  return update;
}

TEST(MergeUpdates, AddsToTheSameChoice) {
  Update older = token(1, 5);
  Update newer = token(1, 6);
  newer.ended = FinishReason::kStop;
  EXPECT_EQ(merge_updates(older, newer), MergeResult::kMerged);
  EXPECT_THAT(older.tokens, ElementsAre(5, 6));
  EXPECT_THAT(older.logprobs, ElementsAre(TokenLogprobs{-5, {}}, TokenLogprobs{-6, {}}));
  EXPECT_EQ(older.text, "5 6 ");
  EXPECT_EQ(older.ended, FinishReason::kStop);
}

TEST(MergeUpdates, KeepsChoicesAndTheEndApart) {
  Update older = token(1, 5);
  Update other = token(2, 6);
  EXPECT_EQ(merge_updates(older, other), MergeResult::kUnrelated);
  Update last = token(1, 7);
  last.finish.emplace();
  EXPECT_EQ(merge_updates(older, last), MergeResult::kSeparate);
  EXPECT_THAT(older.tokens, ElementsAre(5));
  EXPECT_FALSE(older.finish);
}

TEST(MergeUpdates, EventsDoNotGrowWithoutBound) {
  Update older = token(0, 1);
  older.tokens.resize(kMergedTokensMax - 1);
  Update newer = token(0, 2);
  EXPECT_EQ(merge_updates(older, newer), MergeResult::kMerged);
  EXPECT_EQ(merge_updates(older, newer), MergeResult::kSeparate);
}

TEST(RequestUpdates, ASlowReaderMissesNothing) {
  constexpr int kChoices = 5;
  constexpr int kTokens = 3000;
  EventLoop loop;
  FakeEngine engine;
  RequestUpdates updates(engine, loop.executor());
  const OnUpdate push = updates.callback(std::make_shared<RequestMeter>(
      std::make_shared<WorkerMetrics>(Role::kBoth, "tiny"), SteadyClock::now(), 1, kChoices));
  for (int i = 0; i < kTokens; ++i) {
    for (int choice = 0; choice < kChoices; ++choice) push(token(choice, i));
  }
  Update last;
  last.choice = 3;
  last.finish.emplace();
  push(last);

  std::vector<Update> answers(kChoices);
  int taken = 0;
  loop.run_coroutine([&]() -> asio::awaitable<void> {
    for (;;) {
      const Update update = co_await updates.next();
      ++taken;
      append_update(answers[update.choice], update);
      if (update.finish) break;
    }
  });
  for (const Update& answer : answers) {
    ASSERT_EQ(answer.tokens.size(), static_cast<std::size_t>(kTokens));
    for (int i = 0; i < kTokens; ++i) ASSERT_EQ(answer.tokens[i], i);
    EXPECT_EQ(answer.logprobs.size(), answer.tokens.size());
  }
  EXPECT_LT(taken, 60);
}

}  // namespace
}  // namespace kvlane
