// Plans: how many requests, which tokens they share, what happens when they do not fit.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvlane {
namespace {

using testing::HasSubstr;

DrawnWorkload fixed(int input, int output) {
  DrawnWorkload drawn;
  drawn.input = around(input, 0);
  drawn.output = around(output, 0);
  return drawn;
}

Workload draw(const DrawnWorkload& drawn, WorkloadLimits limits, std::uint64_t seed = 1) {
  Result<Workload> workload = draw_workload(drawn, limits, seed);
  EXPECT_TRUE(workload.ok()) << workload.status().message();
  return std::move(*workload);
}

std::vector<std::int32_t> ids_of(const Turn& turn, std::uint64_t seed = 1) {
  std::vector<std::int32_t> ids;
  append_turn_ids(turn, seed, 1000, ids);
  return ids;
}

TEST(DrawnWorkload, HasTheRequestsThatWereAskedFor) {
  const Workload workload = draw(fixed(10, 3), {.requests = 5});
  ASSERT_EQ(workload.conversations.size(), 5u);
  EXPECT_EQ(workload.requests, 5u);
  EXPECT_EQ(workload.shortened, 0u);
  std::set<std::vector<std::int32_t>> prompts;
  for (const Conversation& conversation : workload.conversations) {
    ASSERT_EQ(conversation.turns.size(), 1u);
    EXPECT_EQ(conversation.turns[0].new_tokens(), 10);
    EXPECT_EQ(conversation.turns[0].output_tokens, 3);
    prompts.insert(ids_of(conversation.turns[0]));
  }
  EXPECT_EQ(prompts.size(), 5u) << "all prompts differ";
}

TEST(DrawnWorkload, DependsOnTheSeedAlone) {
  DrawnWorkload drawn = fixed(10, 3);
  drawn.input = around(100, 0.5);
  const Workload one = draw(drawn, {.requests = 4}, 5);
  const Workload same = draw(drawn, {.requests = 9}, 5);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ids_of(one.conversations[i].turns[0], one.seed),
              ids_of(same.conversations[i].turns[0], same.seed))
        << "further requests do not change the first ones";
  }
  const Workload other = draw(drawn, {.requests = 4}, 6);
  EXPECT_NE(ids_of(one.conversations[0].turns[0], one.seed),
            ids_of(other.conversations[0].turns[0], other.seed));
}

TEST(DrawnWorkload, RoundsMakeConversations) {
  DrawnWorkload drawn = fixed(10, 3);
  drawn.rounds = 3;
  drawn.prefix_tokens = 4;
  drawn.think_time = 2;
  const Workload workload = draw(drawn, {.requests = 7});
  ASSERT_EQ(workload.conversations.size(), 3u);
  EXPECT_EQ(workload.conversations[2].turns.size(), 1u) << "the last one is cut";
  EXPECT_EQ(workload.requests, 7u);
  EXPECT_EQ(workload.think_time, 2);
  EXPECT_EQ(workload.conversations[0].turns[0].new_tokens(), 14);
  EXPECT_EQ(workload.conversations[0].turns[1].new_tokens(), 10) << "the prefix comes once";
}

TEST(DrawnWorkload, PrefixesAreShared) {
  DrawnWorkload drawn = fixed(2, 1);
  drawn.prefix_tokens = 8;
  drawn.prefixes = 3;
  std::map<std::vector<std::int32_t>, int> evenly;
  for (const Conversation& c : draw(drawn, {.requests = 300}).conversations) {
    std::vector<std::int32_t> ids = ids_of(c.turns[0]);
    ids.resize(8);
    ++evenly[ids];
  }
  ASSERT_EQ(evenly.size(), 3u);
  for (const auto& [ids, count] : evenly) EXPECT_GT(count, 60);

  drawn.prefix_zipf = 3;  // 1 : 1/8 : 1/27
  int most = 0;
  for (const Conversation& c : draw(drawn, {.requests = 300}).conversations) {
    if (c.turns[0].parts[0].index == 0) ++most;
  }
  EXPECT_GT(most, 225);
}

TEST(DrawnWorkload, IsCutToTheContext) {
  const Workload workload = draw(fixed(100, 30), {.requests = 2, .context = 64});
  EXPECT_EQ(workload.shortened, 2u);
  for (const Conversation& conversation : workload.conversations) {
    EXPECT_EQ(conversation.turns[0].output_tokens, 30);
    EXPECT_EQ(conversation.turns[0].new_tokens(), 34);
  }
  // A long answer leaves the prompt half of the context.
  const Workload talkative = draw(fixed(100, 500), {.requests = 1, .context = 64});
  EXPECT_EQ(talkative.conversations[0].turns[0].output_tokens, 32);
  EXPECT_EQ(talkative.conversations[0].turns[0].new_tokens(), 32);
}

TEST(DrawnWorkload, TurnsThatDoNotFitAreDropped) {
  DrawnWorkload drawn = fixed(10, 10);
  drawn.rounds = 5;
  const Workload workload = draw(drawn, {.requests = 5, .context = 50});
  EXPECT_EQ(workload.conversations[0].turns.size(), 2u);
  EXPECT_EQ(workload.requests, 2u);
  EXPECT_EQ(workload.shortened, 3u);
}

TEST(DrawnWorkload, NeedsAContextOfTwoTokens) {
  const Result<Workload> workload = draw_workload(fixed(1, 1), {.requests = 1, .context = 1}, 0);
  ASSERT_FALSE(workload.ok());
  EXPECT_THAT(workload.status().message(), HasSubstr("a context of 1 tokens"));
  EXPECT_EQ(draw(fixed(9, 9), {.requests = 1, .context = 2}).conversations[0].turns[0].new_tokens(),
            1);
}

Trace small_trace() {
  Trace trace;
  trace.has_times = true;
  trace.requests = {{0, 1000, 10, {7, 8}}, {2, 1024, 20, {7, 9}}, {4, 30, 5, {}}};
  return trace;
}

TEST(ReplayedTrace, SharesPrefixesWhereBlocksAreEqual) {
  const Result<Workload> workload = replay_trace(small_trace(), 0.5, 1, {}, 1);
  ASSERT_TRUE(workload.ok());
  ASSERT_EQ(workload->conversations.size(), 3u);
  EXPECT_EQ(workload->conversations[1].due, 1);
  EXPECT_EQ(workload->conversations[1].turns[0].output_tokens, 20);
  const std::vector<std::int32_t> one = ids_of(workload->conversations[0].turns[0]);
  const std::vector<std::int32_t> two = ids_of(workload->conversations[1].turns[0]);
  ASSERT_EQ(one.size(), 1000u);
  ASSERT_EQ(two.size(), 1024u);
  EXPECT_TRUE(std::equal(one.begin(), one.begin() + 512, two.begin()));
  EXPECT_NE(one[512], two[512]);
  EXPECT_EQ(ids_of(workload->conversations[2].turns[0]).size(), 30u);
}

TEST(ReplayedTrace, ScalesBlocksWithLengths) {
  const Result<Workload> workload = replay_trace(small_trace(), 1, 1.0 / 64, {}, 1);
  ASSERT_TRUE(workload.ok());
  const std::vector<std::int32_t> one = ids_of(workload->conversations[0].turns[0]);
  const std::vector<std::int32_t> two = ids_of(workload->conversations[1].turns[0]);
  ASSERT_EQ(one.size(), 16u);
  ASSERT_EQ(two.size(), 16u);
  EXPECT_TRUE(std::equal(one.begin(), one.begin() + 8, two.begin()));
  EXPECT_FALSE(std::equal(one.begin() + 8, one.end(), two.begin() + 8));
  EXPECT_EQ(workload->conversations[2].turns[0].output_tokens, 1) << "never less than a token";
}

TEST(ReplayedTrace, ScalingNeverLosesTokens) {
  // 1000 tokens round up, their blocks of 512 round down.
  for (const double scale : {0.001, 0.0029, 0.3, 0.7, 1.3}) {
    const Result<Workload> workload = replay_trace(small_trace(), 1, scale, {}, 1);
    ASSERT_TRUE(workload.ok());
    EXPECT_EQ(workload->conversations[0].turns[0].new_tokens(),
              std::max(1, static_cast<int>(std::lround(1000 * scale))));
  }
}

TEST(ReplayedTrace, StopsAfterTheRequestsThatWereAskedFor) {
  const Result<Workload> workload = replay_trace(small_trace(), 1, 1, {.requests = 2}, 1);
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->requests, 2u);
}

TEST(Warmup, HasTheSameLengthsAndOtherTokens) {
  const Result<Workload> workload = replay_trace(small_trace(), 1, 1, {}, 1);
  ASSERT_TRUE(workload.ok());
  const std::vector<Turn> turns = warmup_turns(*workload, 4);
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_EQ(turns[0].new_tokens(), 1000);
  EXPECT_EQ(turns[3].new_tokens(), 1000);
  EXPECT_EQ(turns[1].output_tokens, 20);
  EXPECT_NE(ids_of(turns[0])[0], ids_of(workload->conversations[0].turns[0])[0]);
}

}  // namespace
}  // namespace kvlane
