// The order of rounds, and medians of ratios.
// SPDX-License-Identifier: Apache-2.0
#include "bench/interleaved.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

TEST(TimeInTurns, RunsAllInEveryRound) {
  std::string order;
  Contender contenders[] = {{"a", [&] { order += 'a'; }, {}}, {"b", [&] { order += 'b'; }, {}}};
  std::vector<int> rounds;
  time_in_turns(contenders, 3, 0, [&](int round) {
    if (round == 0) order.clear();
    rounds.push_back(round);
  });
  EXPECT_EQ(order, "ababab");
  EXPECT_EQ(rounds, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(contenders[0].seconds.size(), 3U);
  EXPECT_EQ(contenders[1].seconds.size(), 3U);
}

TEST(TimeInTurns, RepeatsWhatIsShort) {
  int calls = 0;
  Contender contender{"a", [&] { ++calls; }, {}};
  time_in_turns({&contender, 1}, 1, 1e-4, {});
  EXPECT_GT(calls, 10);
  EXPECT_LT(contender.seconds[0], 1e-5);  // of one call
}

TEST(SpeedRatio, IsTheMedianOfTheRounds) {
  const Contender base{"a", {}, {1, 2, 30}};
  const Contender other{"b", {}, {2, 1, 10}};
  EXPECT_DOUBLE_EQ(speed_ratio(base, other), 2);
}

}  // namespace
}  // namespace kvlane
