// Endpoints over the test double, in virtual time: pushes and fetches on a good and on a bad
// network, every end a transfer can have, and the promises of the interface.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/test_pair.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

TEST(Endpoint, PushArrives) {
  Pair pair;
  Journey journey(pair, 1, begin_of(200, 3));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  EXPECT_EQ(journey.sink->slabs(), 12U);
  // All was there before the link: connecting and greeting, a millisecond each way, held it up.
  EXPECT_EQ(journey.sink->end()->since_begin, 0);
  EXPECT_NEAR(journey.sink->end()->durations.at("transfer"), 0.003, 0.0015);
}

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

TEST(Endpoint, SlabsAreFramedWhereTheyAreSentFrom) {
  Pair pair;
  Journey journey(pair, 1, begin_of(65, 2));
  for (const SlabName slab : {SlabName{0, 0}, SlabName{0, 1}, SlabName{1, 0}, SlabName{1, 1}}) {
    const Bytes bytes = frame_of(journey.begin, slab);
    const Frame frame = *parse_frame(bytes);
    FrameHeader header = frame.header;
    header.body_checksum = 0;  // what the caller says of checksums does not count
    const auto add = [&](const FrameHeader& named) {
      return journey.outgoing->add_slab(named, body_of(frame.k, frame.v)).code();
    };
    ASSERT_EQ(add(header), Code::kOk);
    EXPECT_EQ(add(header), Code::kInvalidArgument) << "it came before";
    FrameHeader other = header;
    other.layer = 2;
    EXPECT_EQ(add(other), Code::kInvalidArgument);
    other = header;
    other.model[0] ^= std::byte{1};
    EXPECT_EQ(add(other), Code::kInvalidArgument);
    other = header;
    other.k_bytes = 0;
    EXPECT_EQ(add(other), Code::kInvalidArgument);
  }
  journey.outgoing->finish(end_of(17));
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}

TEST(Endpoint, ParkedFramesAreFetched) {
  Pair pair;
  Journey journey(pair, 1, begin_of(65, 2), /*parked=*/true);
  ASSERT_TRUE(journey.send().ok());
  pair.network->run_for(Seconds(50));
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  // Waiting to be fetched is no transfer.
  EXPECT_FALSE(journey.sink->end()->durations.contains("transfer"));
}

TEST(Endpoint, ParkedFramesAreFetchedBeforeTheLastIsThere) {
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

TEST(Endpoint, OneLinkServesManyTransfers) {
  Pair pair;
  std::vector<std::unique_ptr<Journey>> journeys;
  for (std::uint32_t i = 0; i < 40; ++i) {
    journeys.push_back(std::make_unique<Journey>(pair, i, begin_of(70 + int(i), 2)));
    ASSERT_TRUE(journeys.back()->send().ok());
  }
  for (const auto& journey : journeys) {
    ASSERT_TRUE(pair.run(*journey->sink, journey->delivery));
    journey->expect_success();
  }
  // HELLO and HELLO_ACK once; per transfer 4 slabs, BEGIN, END, DONE.
  EXPECT_EQ(pair.network->messages(), 2U + 40U * 7U);
}

TEST(Endpoint, BothDirectionsAtOnceAndToItself) {
  Pair pair;
  Journey there(pair, 1, begin_of(100, 2));
  const auto sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  ASSERT_TRUE(pair.a->expect(id_of(1), Seconds(5), sink).ok());  // the same id, the other role
  auto back = *pair.b->push(pair.a->address(), id_of(1), there.begin, bytes_for(there.begin),
                            delivery.callback());
  const auto own_sink = std::make_shared<CheckingSink>();
  Delivery own;
  ASSERT_TRUE(pair.a->expect(id_of(3), Seconds(5), own_sink).ok());
  auto self = *pair.a->push(pair.a->address(), id_of(3), there.begin, bytes_for(there.begin),
                            own.callback());
  ASSERT_TRUE(there.send().ok());
  ASSERT_TRUE(send_all(*back, there.begin, 5).ok());
  ASSERT_TRUE(send_all(*self, there.begin, 6).ok());
  ASSERT_TRUE(pair.run(*there.sink, there.delivery));
  ASSERT_TRUE(pair.run(*sink, delivery));
  ASSERT_TRUE(pair.run(*own_sink, own));
  there.expect_success();
  EXPECT_TRUE(delivery.ok());
  EXPECT_EQ(own_sink->end()->first.at(0).token, 6);
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

TEST(Endpoint, AWorkerThatDiesFailsItsTransfers) {
  for (const bool sender_dies : {true, false}) {
    Pair pair;
    Journey journey(pair, 1, begin_of(100, 2));
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
    pair.network->run_for(Seconds(0.1));
    EXPECT_EQ(journey.sink->slabs(), 1U);
    (sender_dies ? pair.a : pair.b).reset();
    // The dying side's own calls come at once, the other's when the link has ended.
    EXPECT_EQ(journey.delivery.over(), sender_dies);
    EXPECT_EQ(journey.sink->over(), !sender_dies);
    ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
    EXPECT_EQ(journey.sink->failure().code(), sender_dies ? Code::kUnavailable : Code::kAborted);
    EXPECT_EQ(journey.delivery.status().code(), sender_dies ? Code::kAborted : Code::kUnavailable);
    EXPECT_EQ(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 1})).code(),
              sender_dies ? Code::kAborted : Code::kUnavailable);
  }
}

// Ends.

TEST(Endpoint, NobodyThereFailsAtOnce) {
  Pair pair;
  Delivery delivery;
  auto outgoing = *pair.a->push({"127.0.0.1", 9}, id_of(1), begin_of(1, 1),
                                bytes_for(begin_of(1, 1)), delivery.callback());
  ASSERT_TRUE(pair.run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kUnavailable);
  EXPECT_THAT(delivery.status().message(), HasSubstr("127.0.0.1:9"));
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(pair.b->fetch({"127.0.0.1", 9}, id_of(1), sink).ok());
  ASSERT_TRUE(pair.run(*sink));
  EXPECT_EQ(sink->failure().code(), Code::kUnavailable);
}

TEST(Endpoint, UnexpectedPushesAreRefused) {
  Pair pair;
  Delivery delivery;
  auto outgoing = *pair.a->push(pair.b->address(), id_of(1), begin_of(1, 1),
                                bytes_for(begin_of(1, 1)), delivery.callback());
  ASSERT_TRUE(pair.run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kNotFound);
  EXPECT_THAT(delivery.status().message(), HasSubstr("not expected here"));
  EXPECT_EQ(add_frame(*outgoing, frame_of(begin_of(1, 1), {0, 0})).code(), Code::kNotFound);
}

TEST(Endpoint, UnknownFetchesAreRefused) {
  Pair pair;
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), id_of(1), sink).ok());
  ASSERT_TRUE(pair.run(*sink));
  EXPECT_EQ(sink->failure().code(), Code::kNotFound);
  EXPECT_THAT(sink->failure().message(), HasSubstr("not parked here"));
}

TEST(Endpoint, ExpectingEndsAfterItsWait) {
  Pair pair;
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(pair.b->expect(id_of(1), Seconds(5), sink).ok());
  pair.network->run_for(Seconds(4.5));
  EXPECT_FALSE(sink->over());
  pair.network->run_for(Seconds(1));
  EXPECT_EQ(sink->failure().code(), Code::kTimeout);
  EXPECT_THAT(sink->failure().message(), HasSubstr("within 5 s"));
  // Who comes too late hears why.
  Delivery delivery;
  auto outgoing = *pair.a->push(pair.b->address(), id_of(1), begin_of(1, 1),
                                bytes_for(begin_of(1, 1)), delivery.callback());
  ASSERT_TRUE(pair.run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kTimeout);
}

TEST(Endpoint, LeasesExpire) {
  Pair pair;
  Journey journey(pair, 1, begin_of(1, 1), /*parked=*/true);
  ASSERT_TRUE(journey.send().ok());
  pair.network->run_for(Seconds(59));
  EXPECT_FALSE(journey.delivery.over());
  pair.network->run_for(Seconds(2));
  ASSERT_TRUE(journey.delivery.over());
  EXPECT_EQ(journey.delivery.status().code(), Code::kTimeout);
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  ASSERT_TRUE(pair.run(*journey.sink));
  EXPECT_EQ(journey.sink->failure().code(), Code::kTimeout);
  EXPECT_THAT(journey.sink->failure().message(), HasSubstr("nobody fetched"));
}

TEST(Endpoint, ParkedFramesGoToOneWorkerOnly) {
  Pair pair;
  auto third = std::move(*Endpoint::start(*pair.network, options_for_test()));
  Journey journey(pair, 1, begin_of(100, 2), /*parked=*/true);
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  pair.network->run_for(Seconds(0.1));
  const auto late = std::make_shared<CheckingSink>();
  ASSERT_TRUE(third->fetch(pair.a->address(), journey.id, late).ok());
  ASSERT_TRUE(pair.run(*late));
  EXPECT_EQ(late->failure().code(), Code::kUnavailable);
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
  const auto later = std::make_shared<CheckingSink>();
  ASSERT_TRUE(third->fetch(pair.a->address(), journey.id, later).ok());
  ASSERT_TRUE(pair.run(*later));
  EXPECT_THAT(later->failure().message(), HasSubstr("already delivered"));
}

TEST(Endpoint, ErrorsOfTheSenderReachTheReceiver) {
  Pair pair;
  Journey journey(pair, 1, begin_of(100, 2));
  pair.network->run_for(Seconds(0.1));
  journey.outgoing->fail(exhausted("no memory for layer 1"));
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  EXPECT_EQ(journey.sink->failure().code(), Code::kExhausted);
  EXPECT_THAT(journey.sink->failure().message(), HasSubstr("no memory for layer 1"));
  EXPECT_EQ(journey.delivery.status().message(), "no memory for layer 1");
}

TEST(Endpoint, ErrorsOfTheSinkReachTheSender) {
  for (const std::string at : {"begin", "slab"}) {
    Pair pair;
    Journey journey(pair, 1, begin_of(100, 2));
    journey.sink->hook = [&](const char* call) {
      return call == at ? exhausted("no blocks left") : Status();
    };
    ASSERT_TRUE(journey.send().ok());
    ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
    EXPECT_EQ(journey.sink->failure().message(), "no blocks left");
    EXPECT_EQ(journey.delivery.status().code(), Code::kExhausted);
    EXPECT_THAT(journey.delivery.status().message(), HasSubstr("the receiver reports"));
  }
}

TEST(Endpoint, AHandleThatIsDroppedEndsItsTransfer) {
  Pair pair;
  Journey journey(pair, 1, begin_of(100, 2));
  pair.network->run_for(Seconds(0.1));
  journey.outgoing.reset();
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  EXPECT_EQ(journey.sink->failure().code(), Code::kAborted);
  EXPECT_EQ(journey.delivery.status().code(), Code::kAborted);
}

TEST(Endpoint, FinishedTransfersDoNotNeedTheirHandle) {
  Pair pair;
  Journey journey(pair, 1, begin_of(100, 2));
  ASSERT_TRUE(journey.send().ok());
  journey.outgoing.reset();
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}

TEST(Endpoint, EndingTooEarlyIsAnError) {
  Pair pair;
  Journey journey(pair, 1, begin_of(100, 2));
  ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
  pair.network->run_for(Seconds(0.1));
  journey.outgoing->finish(end_of(1));
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  EXPECT_EQ(journey.delivery.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(journey.delivery.status().message(), HasSubstr("1 of 4 slabs"));
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
      (receiver_cancels ? pair.b : pair.a)->cancel(journey.id);
      if (receiver_cancels) {
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

TEST(Endpoint, CancelFromWithinEveryCall) {
  for (const std::string at : {"begin", "slab", "end", "failed"}) {
    Pair pair;
    Journey journey(pair, 1, begin_of(200, 2));
    bool done = false;
    journey.sink->hook = [&](const char* call) {
      if (call == at) {
        pair.b->cancel(journey.id);
        done = true;
      }
      return Status();
    };
    if (at == "failed") {
      journey.outgoing->fail(internal_error("on purpose"));
      journey.outgoing = *pair.a->push(pair.b->address(), id_of(2), journey.begin,
                                       bytes_for(journey.begin), nullptr);
      pair.network->run_for(Seconds(31));  // the wait ends
    } else {
      ASSERT_TRUE(journey.send().ok());
    }
    ASSERT_TRUE(pair.run(journey.delivery));
    EXPECT_TRUE(done);
    EXPECT_EQ(journey.sink.use_count(), 1) << at;
    EXPECT_EQ(journey.delivery.ok(), at == "end") << at;
  }
}

TEST(Endpoint, UnknownCancelsAreIgnored) {
  Pair pair;
  pair.a->cancel(id_of(1));
  pair.a->cancel({});
}

TEST(Endpoint, ACancelledIdCanBeUsedAgain) {
  Pair pair;
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(pair.b->expect(id_of(1), Seconds(5), sink).ok());
  EXPECT_EQ(pair.b->expect(id_of(1), Seconds(5), sink).code(), Code::kInvalidArgument);
  pair.b->cancel(id_of(1));
  Journey journey(pair, 1, begin_of(10, 1));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  journey.expect_success();
}

}  // namespace
}  // namespace kvlane
