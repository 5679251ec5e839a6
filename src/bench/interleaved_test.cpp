// The order of rounds, and medians of ratios.
// SPDX-License-Identifier: Apache-2.0
#include "bench/interleaved.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvlane {
namespace {

TEST(TimeInTurns, RunsAllInEveryRound) {
  std::string order;
  Contender contenders[] = {{"a", [&] { order += 'a'; }, {}}, {"b", [&] { order += 'b'; }, {}}};
  std::vector<int> rounds;
  time_in_turns(contenders, TimedBy::kWall, 3, 0, [&](int round) {
    if (round == 0) order.clear();
    rounds.push_back(round);
  });
  EXPECT_EQ(order, "ababab");
  EXPECT_EQ(rounds, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(contenders[0].seconds.size(), 3U);
  EXPECT_EQ(contenders[1].seconds.size(), 3U);
}

TEST(TimeInTurns, RepeatsWhatIsShort) {
  for (const TimedBy clock : {TimedBy::kWall, TimedBy::kOneThread}) {
    int calls = 0;
    Contender contender{"a", [&] { ++calls; }, {}};
    time_in_turns({&contender, 1}, clock, 1, 1e-4, {});
    EXPECT_GT(calls, 10);
    EXPECT_LT(contender.seconds[0], 1e-5);  // of one call
  }
}

TEST(TimeInTurns, AThreadThatSleepsTakesNoTimeOfItsOwn) {
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  Contender wall{"wall", sleep, {}};
  Contender thread{"thread", sleep, {}};
  time_in_turns({&wall, 1}, TimedBy::kWall, 1, 0, {});
  time_in_turns({&thread, 1}, TimedBy::kOneThread, 1, 0, {});
  EXPECT_GE(wall.seconds[0], 5e-3);
  EXPECT_LT(thread.seconds[0], 2e-3);
}

TEST(SpeedRatio, IsTheMedianOfTheRounds) {
  const Contender base{"a", {}, {1, 2, 30}};
  const Contender other{"b", {}, {2, 1, 10}};
  EXPECT_DOUBLE_EQ(speed_ratio(base, other), 2);
}

}  // namespace
}  // namespace kvlane
