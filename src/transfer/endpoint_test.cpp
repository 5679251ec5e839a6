// Endpoints over the test double, in virtual time: what takes long, bad networks, cuts, and
// cancelling at every step. What needs none of these: endpoint_links_test.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "transfer/test_pair.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

// A message takes a millisecond: HELLO and its answer two.
TEST(Endpoint, TheTimeOfALateLinkIsTold) {
  Pair pair;
  Journey late(pair, 1, begin_of(64, 1));
  ASSERT_TRUE(late.send().ok());
  ASSERT_TRUE(pair.run(*late.sink, late.delivery));
  EXPECT_NEAR(late.sink->end()->durations.at("transfer"), 0.002, 1e-9);
  EXPECT_EQ(late.sink->end()->since_begin, 0);

  Journey in_time(pair, 2, begin_of(64, 1));  // the link stands
  pair.network->run_for(Seconds(3));
  ASSERT_TRUE(in_time.send().ok());
  ASSERT_TRUE(pair.run(*in_time.sink, in_time.delivery));
  EXPECT_EQ(in_time.sink->end()->durations.count("transfer"), 0U);
  EXPECT_NEAR(in_time.sink->end()->since_begin, 3, 1e-9);

  Journey parked(pair, 3, begin_of(64, 1), /*parked=*/true);
  ASSERT_TRUE(parked.send().ok());
  pair.network->run_for(Seconds(5));  // a router's time, not the network's
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), parked.id, parked.sink).ok());
  ASSERT_TRUE(pair.run(*parked.sink, parked.delivery));
  EXPECT_EQ(parked.sink->end()->durations.count("transfer"), 0U);
  EXPECT_EQ(parked.sink->end()->since_begin, 0);
}

// Of what is pushed to a peer, and of what others fetch, each on links of its own.
TEST(Endpoint, LinksThatWereTheBottleneckHaveASpeed) {
  TestFaults faults;
  faults.bytes_per_second = 20e6;
  Pair pair(faults);
  const TransferBegin begin = begin_of(200, 3);
  const std::size_t bytes_max = outgoing_bytes_needed(begin, std::size_t{1} << 18);
  const auto heavy = [&](std::uint32_t number, bool parked) {
    const TransferId id = id_of(number);
    const auto sink = std::make_shared<CheckingSink>();
    Delivery delivery;
    if (!parked) {
      ASSERT_TRUE(pair.b->expect(id, Seconds(30), sink).ok());
    }
    const auto outgoing =
        parked ? *pair.a->park(id, begin, bytes_max, delivery.callback())
               : *pair.a->push(pair.b->address(), id, begin, bytes_max, delivery.callback());
    for (std::uint32_t slab = 0; slab < 12; ++slab) {
      FrameHeader header = frame_header_of(begin, {slab / 4, slab % 4});
      header.head_dim = 800;
      ASSERT_TRUE(add_frame(*outgoing, frame_with(header, {slab / 4, slab % 4})).ok());
    }
    outgoing->finish(end_of(17));
    if (parked) {
      ASSERT_TRUE(pair.b->fetch(pair.a->address(), id, sink).ok());
    }
    ASSERT_TRUE(pair.run(*sink, delivery));
  };
  EXPECT_FALSE(pair.a->link_speed(pair.b->address()));
  heavy(1, false);
  ASSERT_TRUE(pair.a->link_speed(pair.b->address()));
  EXPECT_NEAR(pair.a->link_speed(pair.b->address())->bytes_per_second, 20e6, 1e6);
  EXPECT_FALSE(pair.a->link_speed(std::nullopt)) << "nobody has fetched yet";
  EXPECT_FALSE(pair.a->link_speed(Address{"elsewhere", 1}));
  heavy(2, true);
  ASSERT_TRUE(pair.a->link_speed(std::nullopt));
  EXPECT_NEAR(pair.a->link_speed(std::nullopt)->bytes_per_second, 20e6, 1e6);
}

// Thirty take turns on a link that carries five of their slabs a second: each waits six seconds for
// its turn, three times the idle limit.
TEST(Endpoint, TurnsThatAreLongerThanTheIdleLimitAreWaitedFor) {
  TestFaults faults;
  faults.bytes_per_second = 250e3;
  const TransferBegin begin = begin_of(64, 3);
  for (const bool parked : {false, true}) {
    Pair pair(faults, options_for_test(), options_for_test(), std::size_t{1} << 17);
    std::vector<std::shared_ptr<CheckingSink>> sinks;
    std::deque<Delivery> deliveries;
    for (std::uint32_t number = 1; number <= 30; ++number) {
      const TransferId id = id_of(number);
      const auto sink = sinks.emplace_back(std::make_shared<CheckingSink>());
      const auto over = deliveries.emplace_back().callback();
      const std::size_t bytes_max = outgoing_bytes_needed(begin, std::size_t{1} << 16);
      std::shared_ptr<OutgoingTransfer> outgoing;
      if (parked) {
        outgoing = *pair.a->park(id, begin, bytes_max, over);
        ASSERT_TRUE(pair.b->fetch(pair.a->address(), id, sink).ok());
      } else {
        ASSERT_TRUE(pair.b->expect(id, Seconds(30), sink).ok());
        outgoing = *pair.a->push(pair.b->address(), id, begin, bytes_max, over);
      }
      for (std::uint32_t layer = 0; layer < 3; ++layer) {
        FrameHeader header = frame_header_of(begin, {layer, 0});
        header.head_dim = 200;
        ASSERT_TRUE(add_frame(*outgoing, frame_with(header, {layer, 0})).ok());
      }
      outgoing->finish(end_of(17));
    }
    pair.network->run_for(Seconds(60));
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      EXPECT_TRUE(sinks[i]->end().has_value()) << sinks[i]->failure().message();
      EXPECT_TRUE(deliveries[i].ok()) << deliveries[i].status().message();
    }
  }
}

TEST(Endpoint, SlabsLeaveWhileMoreAreComputed) {
  Pair pair;
  const TransferBegin begin = begin_of(64, 3);
  Journey journey(pair, 1, begin);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(begin, {layer, 0})).ok());
    // Much longer than the idle limit: heartbeats keep the transfer alive.
    pair.network->run_for(Seconds(30));
    EXPECT_EQ(journey.sink->slabs(), layer + 1);
    ASSERT_FALSE(journey.sink->over()) << journey.sink->failure().message();
  }
  journey.outgoing->finish(end_of(17));
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  EXPECT_NEAR(journey.sink->end()->since_begin, 90, 0.01);
  EXPECT_FALSE(journey.sink->end()->durations.contains("transfer"));
}

// Bad networks.

class BadNetwork : public ::testing::TestWithParam<int> {};

TEST_P(BadNetwork, LossReorderAndDelayAreRepaired) {
  TestFaults faults;
  faults.seed = static_cast<std::uint64_t>(GetParam());
  faults.delay_min = Seconds(0.0005);
  faults.delay_max = Seconds(0.02);
  faults.loss = 0.15;
  faults.reorder = 0.3;
  Pair pair(faults);
  const bool parked = GetParam() % 2 == 0;
  Journey journey(pair, 1, begin_of(64 * 7 + 5, 4), parked);
  if (parked) {
    ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  }
  pair.network->run_for(Seconds(0.05 * (GetParam() % 5)));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}
INSTANTIATE_TEST_SUITE_P(Seeds, BadNetwork, ::testing::Range(1, 51));

TEST(Endpoint, TheSameSeedGivesTheSameRun) {
  const auto messages = [](std::uint64_t seed) {
    TestFaults faults;
    faults.seed = seed;
    faults.loss = 0.2;
    faults.delay_max = Seconds(0.01);
    Pair pair(faults);
    Journey journey(pair, 1, begin_of(500, 4));
    EXPECT_TRUE(journey.send().ok());
    EXPECT_TRUE(pair.run(*journey.sink, journey.delivery));
    return pair.network->messages();
  };
  EXPECT_EQ(messages(3), messages(3));
  EXPECT_NE(messages(3), messages(4));
}

TEST(Endpoint, ManyLostSlabsAreAskedForInSeveralRounds) {
  TestFaults faults;
  Pair pair(faults);
  Journey journey(pair, 1, begin_of(64 * 300, 30));  // 9,000 slabs, more than one MISSING names
  pair.network->run_for(Seconds(0.1));               // BEGIN arrives
  faults.loss = 1;
  pair.network->set_faults(faults);
  ASSERT_TRUE(journey.send().ok());
  pair.network->run_for(Seconds(0.5));
  EXPECT_EQ(journey.sink->slabs(), 0U);
  pair.network->set_faults({});
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}

// Cuts.

struct CutCase {
  bool parked;
  bool silent;
};
class Cut : public ::testing::TestWithParam<CutCase> {};

TEST_P(Cut, AtEveryMessageBothSidesLearnInBoundedTime) {
  const auto [parked, silent] = GetParam();
  bool complete = false;
  for (std::uint64_t index = 0; !complete; ++index) {
    ASSERT_LT(index, 50U);
    TestFaults faults;
    faults.cut_after_messages = index;
    faults.silent_cut = silent;
    Pair pair(faults);
    Journey journey(pair, 1, begin_of(100, 2), parked);
    ASSERT_TRUE(journey.send().ok());
    if (parked) {
      ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
    }
    ASSERT_TRUE(pair.network->run_until(
        [&] { return journey.sink->over() && journey.delivery.over(); }, Seconds(120)))
        << "cut after " << index;
    complete = journey.delivery.ok();
    if (complete) {
      journey.expect_success();
      continue;
    }
    const Code code = journey.delivery.status().code();
    // Nothing under way is known to the sender before BEGIN; then the wait or the lease ends it.
    EXPECT_TRUE(code == Code::kUnavailable || code == Code::kTimeout) << "cut after " << index;
    // The receiver may have everything while DONE was lost; never the other way round.
    if (!journey.sink->end()) {
      EXPECT_TRUE(journey.sink->failure().code() == Code::kUnavailable ||
                  journey.sink->failure().code() == Code::kTimeout);
    }
    EXPECT_FALSE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Cut,
                         ::testing::Values(CutCase{false, false}, CutCase{false, true},
                                           CutCase{true, false}, CutCase{true, true}));

class AfterACut : public ::testing::TestWithParam<bool> {};

TEST_P(AfterACut, TheNextPushDialsAnew) {
  const bool silent = GetParam();
  const Code code = silent ? Code::kTimeout : Code::kUnavailable;
  Pair pair;
  Journey first(pair, 1, begin_of(100, 2));
  pair.network->run_for(Seconds(0.1));
  pair.network->cut(silent);
  ASSERT_TRUE(pair.run(*first.sink, first.delivery));
  EXPECT_EQ(first.sink->failure().code(), code);
  EXPECT_EQ(first.delivery.status().code(), code);
  Journey second(pair, 2, begin_of(100, 2));
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(pair.run(*second.sink, second.delivery));
  second.expect_success();
}
INSTANTIATE_TEST_SUITE_P(Kinds, AfterACut, ::testing::Bool());

// As one is for a while whose peer has ended one of its connections.
TEST(Endpoint, ALinkThatIsOverIsReplacedBeforeItSaysSo) {
  Pair pair;
  Journey first(pair, 1, begin_of(100, 2));
  ASSERT_TRUE(first.send().ok());
  ASSERT_TRUE(pair.run(*first.sink, first.delivery));
  pair.network->cut(false);
  Journey second(pair, 2, begin_of(100, 2));
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(pair.run(*second.sink, second.delivery));
  second.expect_success();
}

// Cancelling.

TEST(Endpoint, CancelAtAnyTimeKeepsItsPromise) {
  for (int step = 0; step < 60; ++step) {
    for (const bool receiver_cancels : {true, false}) {
      Pair pair;
      const bool parked = step % 2 == 1;
      Journey journey(pair, 1, begin_of(200, 2), parked);
      if (parked) {
        ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
      }
      ASSERT_TRUE(journey.send().ok());
      for (int i = 0; i < step; ++i) pair.network->step();
      const bool received = journey.sink->over();
      const bool delivered = journey.delivery.over();
      if (!receiver_cancels) {
        journey.outgoing->fail(aborted("on purpose"));
      } else {
        pair.b->cancel(journey.id, *journey.sink);
        EXPECT_EQ(journey.sink.use_count(), 1) << "the endpoint lets go of the sink";
      }
      pair.network->run_for(Seconds(70));  // longer than the wait and the lease
      ASSERT_TRUE(journey.delivery.over());
      EXPECT_EQ(journey.sink->over(), received || !receiver_cancels);
      if (received || delivered) continue;
      const Code code = journey.delivery.status().code();
      // A sender that was not yet asked for its parked frames does not hear of it.
      EXPECT_TRUE(code == Code::kAborted || (parked && receiver_cancels && code == Code::kTimeout));
    }
  }
}

TEST(Endpoint, CancelFromWithinTheEndOfAWait) {
  Pair pair;
  const auto sink = std::make_shared<CheckingSink>();
  sink->hook = [&](const char*) {
    pair.b->cancel(id_of(1), *sink);
    return Status();
  };
  ASSERT_TRUE(pair.b->expect(id_of(1), Seconds(30), sink).ok());
  pair.network->run_for(Seconds(31));
  EXPECT_EQ(sink->failure().code(), Code::kTimeout);
  EXPECT_EQ(sink.use_count(), 1);
}

TEST(Endpoint, AFetchWaitsForTheLastHoweverLong) {
  Pair pair;
  Journey journey(pair, 1, begin_of(65, 2), /*parked=*/true);
  ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  pair.network->run_for(Seconds(90));  // longer than the lease, which has not begun
  EXPECT_EQ(journey.sink->slabs(), 1U);
  for (const SlabName slab : {SlabName{0, 1}, SlabName{1, 0}, SlabName{1, 1}}) {
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, slab)).ok());
  }
  journey.outgoing->finish(end_of(17));
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}

TEST(Endpoint, ParkedFramesWaitForAFetchAndForTheLast) {
  Pair pair;
  Journey journey(pair, 1, begin_of(65, 2), /*parked=*/true);
  ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
  pair.network->run_for(Seconds(90));  // longer than the lease, which has not begun
  for (const SlabName slab : {SlabName{0, 1}, SlabName{1, 0}, SlabName{1, 1}}) {
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, slab)).ok());
  }
  journey.outgoing->finish(end_of(17));
  pair.network->run_for(Seconds(50));
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  // Waiting to be fetched is no transfer.
  EXPECT_FALSE(journey.sink->end()->durations.contains("transfer"));
}

}  // namespace
}  // namespace kvlane
