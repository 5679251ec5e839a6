// Order, room and fairness.
// SPDX-License-Identifier: Apache-2.0
#include "plan/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvlane {
namespace {

TEST(Rank, GoesByPriorityThenServiceThenArrival) {
  EXPECT_TRUE(goes_before({-1, 100, 9}, {0, 0, 1}));
  EXPECT_TRUE(goes_before({0, 5, 9}, {0, 6, 1}));
  EXPECT_TRUE(goes_before({0, 5, 1}, {0, 5, 2}));
  EXPECT_FALSE(goes_before({0, 5, 2}, {0, 5, 2}));
}

TEST(MayStart, LeavesABlockForEveryAnswerThatGrows) {
  EXPECT_TRUE(may_start(10, 10, 0));
  EXPECT_FALSE(may_start(10, 10, 1));
  EXPECT_TRUE(may_start(7, 10, 3));
  EXPECT_FALSE(may_start(8, 10, 3));
  EXPECT_TRUE(may_start(0, 3, 3));
}

// Serves one request of `cost` tokens at a time to whoever is next, all of them always waiting.
std::vector<double> serve(ClientShares& shares, const std::vector<std::string>& clients,
                          const std::vector<int>& costs, int turns) {
  std::vector<double> had(clients.size(), 0);
  for (int turn = 0; turn < turns; ++turn) {
    std::size_t next = 0;
    for (std::size_t i = 1; i < clients.size(); ++i) {
      if (shares.served(clients[i]) < shares.served(clients[next])) next = i;
    }
    shares.charge(clients[next], costs[next]);
    had[next] += costs[next];
  }
  return had;
}

TEST(ClientShares, AreEqualInTokensNotInRequests) {
  ClientShares shares;
  const std::vector<std::string> clients = {"many small", "few large"};
  for (const std::string& client : clients) shares.enter(client);
  const std::vector<double> had = serve(shares, clients, {10, 1000}, 5000);
  EXPECT_NEAR(had[0], had[1], 1000);
}

TEST(ClientShares, NobodySavesUpWhileAway) {
  ClientShares shares;
  shares.enter("busy");
  shares.charge("busy", 100000);
  shares.enter("late");
  EXPECT_EQ(shares.served("late"), 100000);
}

TEST(ClientShares, LeavingDoesNotWashAway) {
  ClientShares shares;
  shares.enter("greedy");
  shares.enter("modest");
  shares.charge("greedy", 5000);
  shares.charge("modest", 10);
  shares.leave("greedy");
  shares.enter("greedy");
  EXPECT_EQ(shares.served("greedy"), 5000);
  shares.leave("modest");
  shares.enter("modest");
  EXPECT_EQ(shares.served("modest"), 5000) << "level with the least served of those there";
}

TEST(ClientShares, StartLevelWhenTheHouseWasEmpty) {
  ClientShares shares;
  shares.enter("one");
  shares.charge("one", 70);
  shares.leave("one");
  shares.enter("two");
  shares.enter("one");
  EXPECT_EQ(shares.served("one"), shares.served("two"));
}

}  // namespace
}  // namespace kvlane
