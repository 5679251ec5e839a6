// The meter of a link's speed on a clock of its own: what counts, what does not, what is forgotten.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/link_speed.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

// A link that carries what it is told, on a virtual clock.
struct Line {
  void carry(double bytes, double seconds, double receiver_limited = 0) {
    now += std::chrono::duration_cast<SteadyClock::duration>(Seconds(seconds));
    progress.bytes += static_cast<std::uint64_t>(bytes);
    progress.receiver_limited += Seconds(receiver_limited);
  }
  void waiting() { meter.waiting(now, progress); }
  void idle() { meter.idle(now, progress); }

  TimePoint now{};
  LinkProgress progress;
  LinkSpeedMeter meter;
};

TEST(LinkSpeedMeter, MeasuresWhileSomethingWaits) {
  Line line;
  EXPECT_FALSE(line.meter.speed());
  line.waiting();
  line.carry(10e6, 0.1);
  line.waiting();
  ASSERT_TRUE(line.meter.speed());
  EXPECT_NEAR(line.meter.speed()->bytes_per_second, 100e6, 1);
  EXPECT_FALSE(line.meter.speed()->receiver_bound);
}

TEST(LinkSpeedMeter, TheEndOfABacklogClosesTheWindow) {
  Line line;
  line.waiting();
  line.carry(10e6, 0.1);
  line.idle();
  ASSERT_TRUE(line.meter.speed());
  EXPECT_NEAR(line.meter.speed()->bytes_per_second, 100e6, 1);
  EXPECT_FALSE(line.meter.measuring());
}

TEST(LinkSpeedMeter, WhatLeavesWhileNothingWaitsTellsNothing) {
  Line line;
  line.idle();
  for (int i = 0; i < 10; ++i) {
    line.carry(10e6, 0.1);
    line.idle();
  }
  EXPECT_FALSE(line.meter.speed());
  line.waiting();  // the pause before it does not count
  line.carry(10e6, 0.05);
  line.waiting();
  ASSERT_TRUE(line.meter.speed());
  EXPECT_NEAR(line.meter.speed()->bytes_per_second, 200e6, 1);
}

TEST(LinkSpeedMeter, ShortWindowsAndFewBytesAreCollected) {
  Line line;
  line.waiting();
  line.carry(10e6, 0.001);  // into some buffer
  line.waiting();
  EXPECT_FALSE(line.meter.speed()) << "too short";
  line.carry(0, 0.099);
  line.waiting();
  ASSERT_TRUE(line.meter.speed());
  EXPECT_NEAR(line.meter.speed()->bytes_per_second, 100e6, 1);

  Line slow;
  slow.waiting();
  slow.carry(0.2e6, 0.2);
  slow.waiting();
  EXPECT_FALSE(slow.meter.speed()) << "too few";
  slow.carry(0.2e6, 0.2);
  slow.waiting();
  ASSERT_TRUE(slow.meter.speed());
  EXPECT_NEAR(slow.meter.speed()->bytes_per_second, 1e6, 1);
}

TEST(LinkSpeedMeter, ForgetsHowTheLinkWas) {
  Line line;
  line.waiting();
  line.carry(100e6, 0.1);
  line.waiting();
  for (int i = 0; i < 16; ++i) {
    line.carry(10e6, 0.1);
    line.waiting();
  }
  // 0.75^16 = 1 % of what it was too much.
  EXPECT_NEAR(line.meter.speed()->bytes_per_second, 100e6, 0.011 * 900e6);
}

TEST(LinkSpeedMeter, KnowsWhoWasTheBottleneck) {
  Line line;
  line.waiting();
  line.carry(10e6, 0.1, 0.09);
  line.waiting();
  EXPECT_TRUE(line.meter.speed()->receiver_bound);
  for (int i = 0; i < 8; ++i) {
    line.carry(10e6, 0.1, 0.01);
    line.waiting();
  }
  EXPECT_FALSE(line.meter.speed()->receiver_bound);
}

}  // namespace
}  // namespace kvlane
