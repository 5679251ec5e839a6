// Two endpoints, one of them short of memory: receivers that have no room for long, on good and bad
// networks, what waiting is told as, and the sender's arena. What needs no virtual time:
// flow_control_links_test.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/test_pair.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

TEST(FlowControl, FramesWaitWithTheirSender) {
  Pair pair;
  HeldJourney journey(pair, 1, begin_of(200, 3));
  ASSERT_TRUE(journey.send().ok());
  pair.network->run_for(Seconds(20));  // much longer than the idle limit
  ASSERT_FALSE(journey.sink->over() || journey.delivery.over());
  EXPECT_EQ(journey.sink->slabs(), 0U);
  journey.grant();
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  EXPECT_EQ(journey.sink->slabs(), 12U);
}

TEST(FlowControl, AWaitingTransferCostsTwoMessagesAHeartbeat) {
  Pair pair;
  HeldJourney journey(pair, 1, begin_of(200, 3));
  ASSERT_TRUE(journey.send().ok());
  pair.network->run_for(Seconds(1));
  const std::uint64_t before = pair.network->messages();
  pair.network->run_for(Seconds(10));
  const std::uint64_t messages = pair.network->messages() - before;
  EXPECT_GE(messages, 2U * 50U);
  EXPECT_LE(messages, 2U * 80U) << "eight heartbeats a second";
}

TEST(FlowControl, WaitingEndsInBoundedTimeOnBothSides) {
  Pair pair;
  HeldJourney journey(pair, 1, begin_of(200, 3), Seconds(5));
  ASSERT_TRUE(journey.send().ok());
  pair.network->run_for(Seconds(4.5));
  ASSERT_FALSE(journey.sink->over() || journey.delivery.over());
  pair.network->run_for(Seconds(1));
  ASSERT_TRUE(journey.sink->over() && journey.delivery.over());
  EXPECT_EQ(journey.sink->failure().code(), Code::kExhausted);
  EXPECT_EQ(journey.delivery.status().code(), Code::kExhausted);
  EXPECT_THAT(journey.delivery.status().message(), HasSubstr("the receiver reports"));
  EXPECT_EQ(pair.a->outgoing_bytes_free(), EndpointOptions().outgoing_bytes_max);
  EXPECT_EQ(pair.b->grant(journey.id, *journey.sink).code(), Code::kNotFound);
}

TEST(FlowControl, APushThatNeverComesIsATimeoutEvenWithoutRoom) {
  Pair pair;
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(pair.b->expect_waiting(id_of(1), Seconds(5), sink).ok());
  pair.network->run_for(Seconds(6));
  EXPECT_EQ(sink->failure().code(), Code::kTimeout);
}

TEST(FlowControl, AWorkerThatDiesWhileOneWaitsIsNoticed) {
  for (const bool sender_dies : {true, false}) {
    for (const bool silently : {true, false}) {
      Pair pair;
      HeldJourney journey(pair, 1, begin_of(100, 2));
      ASSERT_TRUE(journey.send().ok());
      pair.network->run_for(Seconds(5));
      if (silently) pair.network->cut(/*silent=*/true);
      if (!silently) (sender_dies ? pair.a : pair.b).reset();
      ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
      const Code code = silently ? Code::kTimeout : Code::kUnavailable;
      if (silently || sender_dies) {
        EXPECT_EQ(journey.sink->failure().code(), code);
      }
      if (silently || !sender_dies) {
        EXPECT_EQ(journey.delivery.status().code(), code);
      }
    }
  }
}

class BadNetworkWithoutRoom : public ::testing::TestWithParam<int> {};

TEST_P(BadNetworkWithoutRoom, LossReorderAndDelayAreRepaired) {
  TestFaults faults;
  faults.seed = static_cast<std::uint64_t>(GetParam());
  faults.delay_min = Seconds(0.0005);
  faults.delay_max = Seconds(0.05);
  faults.loss = 0.15;
  faults.reorder = 0.3;
  faults.reorder_delay = Seconds(0.3);  // longer than a heartbeat: WAITs overtake the go
  Pair pair(faults);
  HeldJourney journey(pair, 1, begin_of(64 * 7 + 5, 4));
  const auto run = [&](int salt) {
    const auto number = static_cast<std::uint32_t>(GetParam());
    const auto draw = philox4x32(21, {number, static_cast<std::uint32_t>(salt), 0, 0})[0];
    pair.network->run_for(Seconds(0.001 * (draw % 500)));
  };
  run(1);
  if (GetParam() % 3 == 0) journey.grant();
  for (std::uint32_t i = 0; i < 4 * 8; ++i) {
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {i / 8, i % 8})).ok());
    if (i == 16) run(2);
    if (i == 16 && GetParam() % 3 == 1) journey.grant();
  }
  journey.outgoing->finish(end_of(17));
  run(3);
  if (GetParam() % 3 == 2) journey.grant();
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}
INSTANTIATE_TEST_SUITE_P(Seeds, BadNetworkWithoutRoom, ::testing::Range(1, 91));

// What waiting is told as: spec/transfer.md section 6.

struct WaitCase {
  const char* name;
  double complete;         // seconds from push() to finish()
  double granted;          // seconds from push() to grant()
  double wait_for_memory;  // expected
  double since_begin;
};

class WaitIsTold : public ::testing::TestWithParam<WaitCase> {};

// A message takes a millisecond: BEGIN leaves after two, WAIT is there after four, a go takes one.
TEST_P(WaitIsTold, AsWhatNothingElseHid) {
  const WaitCase& expected = GetParam();
  TimePoint begun, ended;  // on the receiver's side
  Pair pair;
  const TimePoint start = pair.network->now();
  HeldJourney journey(pair, 1, begin_of(64, 2));
  journey.sink->hook = [&, held = journey.sink->hook](const char* call) {
    if (call == std::string("begin")) begun = pair.network->now();
    if (call == std::string("end")) ended = pair.network->now();
    return held(call);
  };
  const auto at = [&](double seconds, const std::function<void()>& act) {
    pair.network->run_for(Seconds(seconds) - (pair.network->now() - start));
    act();
  };
  const auto grant = [&] { at(expected.granted, [&] { journey.grant(); }); };
  const bool granted_first = expected.granted < expected.complete;
  if (granted_first) grant();
  at(expected.complete, [&] { EXPECT_TRUE(journey.send().ok()); });
  if (!granted_first) grant();
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  const TransferEnd end = *journey.sink->end();
  const auto found = end.durations.find("wait_for_memory");
  EXPECT_NEAR(found == end.durations.end() ? 0 : found->second, expected.wait_for_memory, 1e-9);
  EXPECT_NEAR(end.since_begin, expected.since_begin, 1e-9);
  // The receiver's window, by its own clock: nothing is left but the network.
  const double window = seconds_between(begun, ended);
  EXPECT_NEAR(window - end.since_begin, 0, 1e-9);
  // From the start to the end: computing until F, waiting, the network's millisecond.
  const auto late = end.durations.find("transfer");
  const double link = late == end.durations.end() ? 0 : late->second;
  EXPECT_NEAR(expected.complete + link + expected.wait_for_memory + 0.001,
              seconds_between(start, ended), 1e-9);
}
INSTANTIATE_TEST_SUITE_P(Cases, WaitIsTold,
                         ::testing::Values(WaitCase{"ComputedThenHeld", 1, 4, 3.001, 3.999},
                                           WaitCase{"RoomWhileComputing", 4, 1, 0, 3.998},
                                           WaitCase{"RoomAtTheEndOfComputing", 1, 1, 0.001, 0.999},
                                           WaitCase{"AllThereBeforeTheLink", 0, 4, 3.999, 3.999},
                                           WaitCase{"RoomBeforeTheLink", 1, 0, 0, 0.998}),
                         [](const auto& each) { return std::string(each.param.name); });

// The arena.

TEST(Arena, IsSetAsideBeforeAnythingIsComputed) {
  EndpointOptions options = options_for_test();
  const TransferBegin begin = begin_of(64, 4);
  const std::size_t frame_bytes = frame_of(begin, {0, 0}).size();
  EXPECT_EQ(bytes_for(begin), 4 * (kMessageHeaderBytes + frame_bytes));
  options.outgoing_bytes_max = 2 * bytes_for(begin) + 7;
  Pair pair({}, options);
  Journey first(pair, 1, begin, /*parked=*/true);
  EXPECT_EQ(pair.a->outgoing_bytes_free(), bytes_for(begin) + 7);
  Journey second(pair, 2, begin, /*parked=*/true);
  EXPECT_EQ(pair.a->outgoing_bytes_free(), 7U);
  const Status full = pair.a->park(id_of(3), begin, 8, nullptr).status();
  EXPECT_EQ(full.code(), Code::kExhausted);
  EXPECT_THAT(full.message(), HasSubstr("7 of " + std::to_string(options.outgoing_bytes_max)));
  EXPECT_EQ(pair.a->push(pair.b->address(), id_of(3), begin, 8, nullptr).status().code(),
            Code::kExhausted);
  // A transfer that has begun has its memory, whatever the others do.
  ASSERT_TRUE(first.send().ok());
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), first.id, first.sink).ok());
  ASSERT_TRUE(pair.run(*first.sink, first.delivery));
  EXPECT_EQ(pair.a->outgoing_bytes_free(), bytes_for(begin) + 7);
  Journey third(pair, 3, begin);
  ASSERT_TRUE(third.send().ok());
  ASSERT_TRUE(pair.run(*third.sink, third.delivery));
  third.expect_success();
}

TEST(Arena, WhatWasNotNeededIsFreeAfterTheLastFrame) {
  Pair pair;
  const TransferBegin begin = begin_of(64, 2);
  const std::size_t arena = EndpointOptions().outgoing_bytes_max;
  Delivery delivery;
  auto outgoing = *pair.a->park(id_of(1), begin, bytes_for(begin) + 1000, delivery.callback());
  EXPECT_EQ(pair.a->outgoing_bytes_free(), arena - bytes_for(begin) - 1000);
  ASSERT_TRUE(add_frame(*outgoing, frame_of(begin, {0, 0})).ok());
  EXPECT_EQ(pair.a->outgoing_bytes_free(), arena - bytes_for(begin) - 1000);
  ASSERT_TRUE(add_frame(*outgoing, frame_of(begin, {1, 0})).ok());
  outgoing->finish(end_of(1));
  EXPECT_EQ(pair.a->outgoing_bytes_free(), arena - bytes_for(begin));
  outgoing->fail(aborted("enough"));
  EXPECT_EQ(pair.a->outgoing_bytes_free(), arena);
}

TEST(Arena, NoTransferIsLargerThanAllOfIt) {
  EndpointOptions options = options_for_test();
  options.outgoing_bytes_max = 1000;
  Pair pair({}, options);
  const Status status = pair.a->park(id_of(1), begin_of(1, 1), 1001, nullptr).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("may take 1001 bytes, this worker has 1000"));
  EXPECT_TRUE(pair.a->park(id_of(1), begin_of(1, 1), 1000, nullptr).ok());
}

TEST(Arena, NoTransferTakesMoreThanItSetAside) {
  Pair pair;
  const TransferBegin begin = begin_of(64, 2);
  const std::size_t one = kMessageHeaderBytes + frame_of(begin, {0, 0}).size();
  Delivery delivery;
  auto outgoing = *pair.a->park(id_of(1), begin, 2 * one - 1, delivery.callback());
  ASSERT_TRUE(add_frame(*outgoing, frame_of(begin, {0, 0})).ok());
  const Status status = add_frame(*outgoing, frame_of(begin, {1, 0}));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("layer 1, block 0 needs " + std::to_string(one)));
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(one - 1) + " of "));
}

TEST(Arena, ComesBackHoweverATransferEnds) {
  const TransferBegin begin = begin_of(100, 2);
  const std::size_t arena = EndpointOptions().outgoing_bytes_max;
  for (int step = 0; step < 30; ++step) {
    Pair pair;
    Journey pushed(pair, 1, begin);
    Journey parked(pair, 2, begin, /*parked=*/true);
    HeldJourney held(pair, 3, begin);
    ASSERT_TRUE(pushed.send().ok());
    if (step % 2 == 0) {
      ASSERT_TRUE(held.send().ok());
    }
    for (int i = 0; i < step; ++i) pair.network->step();
    if (step % 3 == 0) pair.network->cut(/*silent=*/false);
    if (step % 3 == 1) held.outgoing->fail(aborted("on purpose"));
    if (step % 3 == 2) pushed.outgoing.reset();
    parked.outgoing.reset();
    held.outgoing.reset();
    pair.network->run_for(Seconds(120));
    EXPECT_EQ(pair.a->outgoing_bytes_free(), arena) << step;
    EXPECT_TRUE(pushed.delivery.over() && parked.delivery.over() && held.delivery.over());
  }
}

TEST(Arena, EndsWithoutAFirstTokenAreRefused) {
  Pair pair;
  const TransferBegin begin = begin_of(1, 1);
  Journey journey(pair, 1, begin);
  ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(begin, {0, 0})).ok());
  journey.outgoing->finish({});
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  EXPECT_EQ(journey.delivery.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(journey.delivery.status().message(), HasSubstr("0 first tokens"));
}

}  // namespace
}  // namespace kvlane
