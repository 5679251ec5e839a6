// The order of events.
// SPDX-License-Identifier: Apache-2.0
#include "sim/event_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlane {
namespace {

TEST(EventQueue, ByTimeThenByTurn) {
  EventQueue events;
  std::string order;
  events.at(5, [&] { order += 'c'; });
  events.at(3, [&] {
    order += 'a';
    events.after(2, [&] { order += 'e'; });
    events.after(0, [&] { order += 'b'; });
  });
  events.at(5, [&] { order += 'd'; });
  while (events.step()) {
  }
  EXPECT_EQ(order, "abcde");
  EXPECT_EQ(events.now(), 5);
}

TEST(SimTime, IsRoundedUp) {
  EXPECT_EQ(to_sim_time(1.5e-9), 2);
  EXPECT_EQ(to_sim_time(0), 0);
  EXPECT_DOUBLE_EQ(to_seconds(1'500'000'000), 1.5);
  EXPECT_DOUBLE_EQ(to_seconds(to_sim_time(1e300)), kSimSecondsMax);
}

}  // namespace
}  // namespace kvlane
