// What steps carry, who starts, and who gives way.
// SPDX-License-Identifier: Apache-2.0
#include "sim/replica.h"

#include <gtest/gtest.h>

#include "sim/sim_fixture.h"

namespace kvlane {
namespace {

Replica replica_of(const ReplicaLimits& limits, int stages = 1) {
  const SimModel model = llama_8b();
  const Parallelism parallel{.tensor = 1, .pipeline = stages};
  const StepCost cost(gpu_named("A100-80GB-SXM"), model, parallel, bf16_costs(model), {});
  return {cost, parallel, limits};
}

std::vector<int> tokens_of(const SimStep& step) {
  std::vector<int> tokens;
  for (const SimStep::Part& part : step.parts) tokens.push_back(part.tokens);
  return tokens;
}

TEST(Replica, NothingToDo) {
  Replica replica = replica_of({.blocks = 10});
  EXPECT_TRUE(replica.begin().parts.empty());
  EXPECT_EQ(replica.queued_tokens(), 0);
}

TEST(Replica, APromptComesInPartsAndThenAnswers) {
  Replica replica = replica_of({.blocks = 10, .batch_tokens_max = 100});
  replica.add({.request = 4, .known = 250, .tokens_to_go = 2});
  EXPECT_EQ(replica.queued_tokens(), 250);
  for (const int tokens : {100, 100, 50}) {
    const SimStep step = replica.begin();
    ASSERT_EQ(tokens_of(step), std::vector<int>{tokens});
    EXPECT_EQ(step.parts[0].answers, tokens == 50);
    EXPECT_EQ(replica.end(step).answered.size(), tokens == 50 ? 1U : 0U);
  }
  const SimStep step = replica.begin();
  EXPECT_EQ(tokens_of(step), std::vector<int>{1});
  const StepOutcome outcome = replica.end(step);
  EXPECT_EQ(outcome.answered, std::vector<int>{4});
  EXPECT_EQ(outcome.ended, std::vector<int>{4});
  EXPECT_EQ(replica.blocks_free(), 10);
  EXPECT_EQ(replica.blocks_peak(), 4);
}

TEST(Replica, NoPromptWaitsForAnother) {
  Replica replica = replica_of({.blocks = 100, .batch_tokens_max = 100});
  for (int i = 0; i < 3; ++i) replica.add({.request = i, .known = 1000, .tokens_to_go = 1});
  EXPECT_EQ(tokens_of(replica.begin()), (std::vector<int>{50, 25, 25}));
}

TEST(Replica, TheNextPartFollowsThroughTheStages) {
  Replica replica = replica_of({.blocks = 100, .batch_tokens_max = 100}, 2);
  replica.add({.request = 0, .known = 150, .tokens_to_go = 3});
  const SimStep first = replica.begin();
  EXPECT_EQ(tokens_of(first), std::vector<int>{100});
  EXPECT_EQ(first.stage, to_sim_time(first.time.total() / 2));
  const SimStep second = replica.begin();
  EXPECT_EQ(tokens_of(second), std::vector<int>{50});
  EXPECT_TRUE(replica.begin().parts.empty()) << "its token is not known";
  replica.end(first);
  replica.end(second);
  EXPECT_EQ(tokens_of(replica.begin()), std::vector<int>{1});
}

TEST(Replica, StagesShareTheAnswers) {
  Replica replica = replica_of({.blocks = 100}, 4);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(replica.reserve(65));
    replica.adopt({.request = i, .known = 65, .computed = 64, .tokens_to_go = 5});
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(replica.begin().parts.size(), 2U);
  EXPECT_TRUE(replica.begin().parts.empty());
}

TEST(Replica, FiveAnswersInFourStages) {
  Replica replica = replica_of({.blocks = 100}, 4);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(replica.reserve(65));
    replica.adopt({.request = i, .known = 65, .computed = 64, .tokens_to_go = 5});
  }
  EXPECT_EQ(replica.queued_tokens(), 5);
  for (const std::size_t parts : {2U, 2U, 1U}) EXPECT_EQ(replica.begin().parts.size(), parts);
  EXPECT_EQ(replica.queued_tokens(), 0) << "what answers compute next is no queue";
}

// Blocks that two parts of a prompt make together are found, too, and what is found is not queued.
TEST(Replica, BlocksAcrossPartsAreFound) {
  Replica replica = replica_of({.blocks = 100, .batch_tokens_max = 100});
  std::vector<std::uint64_t> numbers(16);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  const auto names = std::make_shared<const std::vector<std::uint64_t>>(numbers);
  replica.add({.request = 0, .known = 1024, .tokens_to_go = 1, .names = names});
  for (SimStep step = replica.begin(); !step.parts.empty(); step = replica.begin()) {
    replica.end(step);
  }
  replica.add({.request = 1, .known = 1100, .tokens_to_go = 1, .names = names});
  EXPECT_EQ(replica.queued_tokens(), 1100);
  const SimStep step = replica.begin();
  ASSERT_EQ(step.parts.size(), 1U);
  EXPECT_EQ(step.parts[0].context, 1024);
  EXPECT_EQ(step.parts[0].tokens, 76);
  EXPECT_EQ(replica.found(), 1024);
  replica.end(step);
  EXPECT_EQ(replica.queued_tokens(), 0);
  EXPECT_EQ(replica.blocks_free(), 100);
}

// A step with answers takes at most so many times longer for prompts, once it is known what they
// cost.
TEST(Replica, AnswersKeepTheirPace) {
  Replica replica = replica_of({.blocks = 10'000, .batch_tokens_max = 8192, .slowdown_max = 1.5});
  replica.add({.request = 0, .known = 64, .tokens_to_go = 1000});
  replica.end(replica.begin());
  double alone = 0;
  for (int i = 0; i < 5; ++i) {
    const SimStep step = replica.begin();
    alone = step.time.total();
    replica.end(step);
  }
  replica.add({.request = 1, .known = 100'000, .tokens_to_go = 1});
  for (int i = 0; i < 20; ++i) {
    const SimStep step = replica.begin();
    if (i > 10) {
      EXPECT_LT(step.time.total(), 1.8 * alone);
    }
    replica.end(step);
  }
}

TEST(Replica, TheFirstThatFindsNoRoomIsNotOvertaken) {
  Replica replica = replica_of({.blocks = 10});
  replica.add({.request = 0, .known = 5 * 64, .tokens_to_go = 1});
  replica.add({.request = 1, .known = 6 * 64, .tokens_to_go = 1});
  replica.add({.request = 2, .known = 64, .tokens_to_go = 1});
  const SimStep step = replica.begin();
  ASSERT_EQ(step.parts.size(), 1U);
  EXPECT_EQ(step.parts[0].request, 0);
  EXPECT_FALSE(replica.reserve(1)) << "what is free is for those who wait";
  replica.end(step);
  EXPECT_EQ(replica.begin().parts.size(), 2U);
}

TEST(Replica, TheLastInRankGivesWayAndComesBack) {
  Replica replica = replica_of({.blocks = 3});
  ASSERT_TRUE(replica.reserve(64));
  replica.adopt({.request = 7, .known = 64, .computed = 63, .tokens_to_go = 2});
  ASSERT_TRUE(replica.reserve(64));
  replica.adopt({.request = 9, .known = 64, .computed = 63, .tokens_to_go = 2});
  replica.end(replica.begin());
  // Both want a second block, and one is free.
  const SimStep alone = replica.begin();
  ASSERT_EQ(alone.parts.size(), 1U);
  EXPECT_EQ(alone.parts[0].request, 7);
  EXPECT_EQ(replica.stopped(), 1);
  EXPECT_EQ(replica.queued_tokens(), 65) << "all of it is computed again";
  EXPECT_EQ(replica.end(alone).ended, std::vector<int>{7});
  const SimStep again = replica.begin();
  EXPECT_EQ(tokens_of(again), std::vector<int>{65});
  EXPECT_EQ(replica.end(again).ended, std::vector<int>{9});
  EXPECT_EQ(replica.blocks_free(), 3);
}

// Its blocks are held by one that has come meanwhile and waits for its place.
TEST(Replica, WhoGivesWayAloneIsFollowedAtOnce) {
  Replica replica = replica_of({.blocks = 3, .sequences_max = 1});
  ASSERT_TRUE(replica.reserve(64));
  replica.adopt({.request = 1, .known = 64, .computed = 63, .tokens_to_go = 2});
  replica.end(replica.begin());
  ASSERT_TRUE(replica.reserve(64));
  replica.adopt({.request = 2, .known = 64, .computed = 63, .tokens_to_go = 1});
  ASSERT_TRUE(replica.reserve(64)) << "the last block, for one that is on its way";
  const SimStep step = replica.begin();
  ASSERT_EQ(step.parts.size(), 1U);
  EXPECT_EQ(step.parts[0].request, 2);
  EXPECT_EQ(replica.stopped(), 1);
}

TEST(Replica, PlacesAreLimited) {
  Replica replica = replica_of({.blocks = 100, .sequences_max = 2});
  for (int i = 0; i < 3; ++i) replica.add({.request = i, .known = 10, .tokens_to_go = 1});
  const SimStep step = replica.begin();
  EXPECT_EQ(step.parts.size(), 2U);
  EXPECT_EQ(replica.sequences(), 3);
  replica.end(step);
  EXPECT_EQ(replica.begin().parts.size(), 1U);
}

}  // namespace
}  // namespace kvlane
