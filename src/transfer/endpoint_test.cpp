// Endpoints over the test double, in virtual time: pushes and fetches on a good and on a bad
// network, every end a transfer can have, and the promises of the interface.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/test_link.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

// Two workers on one network; `a` sends, `b` receives.
struct Pair {
  explicit Pair(const TestFaults& faults = {}, EndpointOptions for_a = options_for_test(),
                EndpointOptions for_b = options_for_test())
      : network(TestNetwork::create({.drive = TestNetwork::Drive::kManual, .faults = faults})) {
    a = std::move(*Endpoint::start(*network, std::move(for_a)));
    b = std::move(*Endpoint::start(*network, std::move(for_b)));
  }

  // Until the sink, the callback or both are over; false when they take longer than a minute.
  bool run(const CheckingSink& sink) {
    return network->run_until([&] { return sink.over(); }, Seconds(60));
  }
  bool run(const Delivery& delivery) {
    return network->run_until([&] { return delivery.over(); }, Seconds(60));
  }
  bool run(const CheckingSink& sink, const Delivery& delivery) {
    return run(sink) && run(delivery);
  }

  std::unique_ptr<TestNetwork> network;
  std::unique_ptr<Endpoint> a;
  std::unique_ptr<Endpoint> b;
};

// A transfer that was offered and is expected.
struct Journey {
  Journey(Pair& pair, std::uint32_t number, const TransferBegin& what, bool parked = false)
      : id(id_of(number)), begin(what) {
    if (parked) {
      outgoing = *pair.a->park(id, begin, delivery.callback());
    } else {
      EXPECT_TRUE(pair.b->expect(id, Seconds(30), sink).ok());
      outgoing = *pair.a->push(pair.b->address(), id, begin, delivery.callback());
    }
  }
  Status send() { return send_all(*outgoing, begin, 17); }
  void expect_success() const {
    ASSERT_TRUE(sink->end().has_value()) << sink->failure().message();
    EXPECT_EQ(sink->end()->first_token, 17);
    EXPECT_EQ(sink->end()->seed, end_of(17).seed);
    Durations durations = sink->end()->durations;
    durations.erase("transfer");  // what the endpoint itself adds, see TheTimeOfALateLinkIsTold
    EXPECT_EQ(durations, end_of(17).durations);
    ASSERT_TRUE(delivery.over() && delivery.ok()) << delivery.status().message();
    EXPECT_EQ(delivery.durations(), (Durations{{"decode_codec", 0.25}}));
  }

  TransferId id;
  TransferBegin begin;
  std::shared_ptr<CheckingSink> sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  std::shared_ptr<OutgoingTransfer> outgoing;
};

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

TEST(Endpoint, SlabsLeaveWhileMoreAreComputed) {
  Pair pair;
  const TransferBegin begin = begin_of(64, 3);
  Journey journey(pair, 1, begin);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(journey.outgoing->add_frame(frame_of(begin, {layer, 0})).ok());
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
  ASSERT_TRUE(journey.outgoing->add_frame(frame_of(journey.begin, {0, 0})).ok());
  ASSERT_TRUE(pair.b->fetch(pair.a->address(), journey.id, journey.sink).ok());
  pair.network->run_for(Seconds(90));  // longer than the lease, which has not begun
  EXPECT_EQ(journey.sink->slabs(), 1U);
  for (const SlabName slab : {SlabName{0, 1}, SlabName{1, 0}, SlabName{1, 1}}) {
    ASSERT_TRUE(journey.outgoing->add_frame(frame_of(journey.begin, slab)).ok());
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
  auto back = *pair.b->push(pair.a->address(), id_of(1), there.begin, delivery.callback());
  const auto own_sink = std::make_shared<CheckingSink>();
  Delivery own;
  ASSERT_TRUE(pair.a->expect(id_of(3), Seconds(5), own_sink).ok());
  auto self = *pair.a->push(pair.a->address(), id_of(3), there.begin, own.callback());
  ASSERT_TRUE(there.send().ok());
  ASSERT_TRUE(send_all(*back, there.begin, 5).ok());
  ASSERT_TRUE(send_all(*self, there.begin, 6).ok());
  ASSERT_TRUE(pair.run(*there.sink, there.delivery));
  ASSERT_TRUE(pair.run(*sink, delivery));
  ASSERT_TRUE(pair.run(*own_sink, own));
  there.expect_success();
  EXPECT_TRUE(delivery.ok());
  EXPECT_EQ(own_sink->end()->first_token, 6);
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
    EXPECT_FALSE(journey.outgoing->add_frame(frame_of(journey.begin, {0, 0})).ok());
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Cut,
                         ::testing::Values(CutCase{false, false}, CutCase{false, true},
                                           CutCase{true, false}, CutCase{true, true}));

TEST(Endpoint, AfterACutTheNextPushDialsAnew) {
  Pair pair;
  Journey first(pair, 1, begin_of(100, 2));
  pair.network->run_for(Seconds(0.1));
  pair.network->cut(/*silent=*/false);
  ASSERT_TRUE(pair.run(*first.sink, first.delivery));
  EXPECT_EQ(first.sink->failure().code(), Code::kUnavailable);
  EXPECT_EQ(first.delivery.status().code(), Code::kUnavailable);
  Journey second(pair, 2, begin_of(100, 2));
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(pair.run(*second.sink, second.delivery));
  second.expect_success();
}

TEST(Endpoint, AWorkerThatDiesFailsItsTransfers) {
  for (const bool sender_dies : {true, false}) {
    Pair pair;
    Journey journey(pair, 1, begin_of(100, 2));
    ASSERT_TRUE(journey.outgoing->add_frame(frame_of(journey.begin, {0, 0})).ok());
    pair.network->run_for(Seconds(0.1));
    EXPECT_EQ(journey.sink->slabs(), 1U);
    (sender_dies ? pair.a : pair.b).reset();
    // The dying side's own calls come at once, the other's when the link has ended.
    EXPECT_EQ(journey.delivery.over(), sender_dies);
    EXPECT_EQ(journey.sink->over(), !sender_dies);
    ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
    EXPECT_EQ(journey.sink->failure().code(), sender_dies ? Code::kUnavailable : Code::kAborted);
    EXPECT_EQ(journey.delivery.status().code(), sender_dies ? Code::kAborted : Code::kUnavailable);
    EXPECT_EQ(journey.outgoing->add_frame(frame_of(journey.begin, {0, 1})).code(),
              sender_dies ? Code::kAborted : Code::kUnavailable);
  }
}

// Ends.

TEST(Endpoint, NobodyThereFailsAtOnce) {
  Pair pair;
  Delivery delivery;
  auto outgoing = *pair.a->push({"127.0.0.1", 9}, id_of(1), begin_of(1, 1), delivery.callback());
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
  auto outgoing = *pair.a->push(pair.b->address(), id_of(1), begin_of(1, 1), delivery.callback());
  ASSERT_TRUE(pair.run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kNotFound);
  EXPECT_THAT(delivery.status().message(), HasSubstr("not expected here"));
  EXPECT_EQ(outgoing->add_frame(frame_of(begin_of(1, 1), {0, 0})).code(), Code::kNotFound);
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
  auto outgoing = *pair.a->push(pair.b->address(), id_of(1), begin_of(1, 1), delivery.callback());
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
  ASSERT_TRUE(journey.outgoing->add_frame(frame_of(journey.begin, {0, 0})).ok());
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
      journey.outgoing = *pair.a->push(pair.b->address(), id_of(2), journey.begin, nullptr);
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

// Limits and arguments.

TEST(Endpoint, TheArenaHasALimit) {
  EndpointOptions options = options_for_test();
  const TransferBegin begin = begin_of(64, 4);
  const std::size_t message_bytes = kMessageHeaderBytes + frame_of(begin, {0, 0}).size();
  options.outgoing_bytes_max = 3 * message_bytes;
  Pair pair({}, options);
  Journey parked(pair, 1, begin, /*parked=*/true);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(parked.outgoing->add_frame(frame_of(begin, {layer, 0})).ok());
  }
  const Status full = parked.outgoing->add_frame(frame_of(begin, {3, 0}));
  EXPECT_EQ(full.code(), Code::kExhausted);
  EXPECT_THAT(full.message(), HasSubstr(std::to_string(options.outgoing_bytes_max)));
  // The transfer goes on; room comes back when another one ends.
  Journey other(pair, 2, begin_of(64, 1));
  EXPECT_EQ(other.send().code(), Code::kExhausted);
  parked.outgoing->fail(aborted("enough"));
  ASSERT_TRUE(other.send().ok());
  ASSERT_TRUE(pair.run(*other.sink, other.delivery));
  other.expect_success();
}

TEST(Endpoint, FramesOfAnotherTransferAreNotSent) {
  Pair pair;
  Journey journey(pair, 1, begin_of(100, 2));
  const SlabName slab{1, 1};
  const auto with = [&](const std::function<void(FrameHeader&)>& change) {
    FrameHeader header = frame_header_of(journey.begin, slab);
    change(header);
    return journey.outgoing->add_frame(frame_with(header, slab));
  };
  const std::pair<Status, const char*> wrong[] = {
      {with([](FrameHeader& h) { h.model = model_named('x'); }), "a frame of model 7878"},
      {with([](FrameHeader& h) { h.codec = "zstd"; }), "codec zstd"},
      {with([](FrameHeader& h) { h.layer = 2; }), "layer 2"},
      {with([](FrameHeader& h) { h.position = 128; }), "position 128"},
      {with([](FrameHeader& h) { h.tokens = 35; }), "35 tokens"},
      {journey.outgoing->add_frame({}), "0 bytes"},
      {journey.outgoing->add_frame(Bytes(300)), "magic"},
  };
  for (const auto& [status, sentence] : wrong) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(sentence));
  }
  ASSERT_TRUE(with([](FrameHeader&) {}).ok());
  EXPECT_THAT(with([](FrameHeader&) {}).message(), HasSubstr("twice"));
  Bytes longer = frame_of(journey.begin, {0, 0});
  longer.push_back(std::byte{0});
  EXPECT_EQ(journey.outgoing->add_frame(longer).code(), Code::kInvalidArgument);
}

TEST(Endpoint, ArgumentsAreChecked) {
  Pair pair;
  const Address peer = pair.b->address();
  EXPECT_EQ(pair.a->push(peer, id_of(1), begin_of(0, 1), nullptr).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(pair.a->park(id_of(1), {1, 1, "fp16", "none"}, nullptr).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(pair.a->park({}, begin_of(1, 1), nullptr).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(pair.a->park(id_of(1), begin_of(1, 1), nullptr).ok());
  EXPECT_EQ(pair.b->expect(id_of(1), Seconds(1), nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.b->expect({}, Seconds(1), std::make_shared<CheckingSink>()).code(),
            Code::kInvalidArgument);

  const auto start_with = [&](const std::function<void(EndpointOptions&)>& change) {
    EndpointOptions options = options_for_test();
    change(options);
    return Endpoint::start(*pair.network, options).status();
  };
  EXPECT_THAT(start_with([](auto& o) { o.bind.host = "0.0.0.0"; }).message(),
              HasSubstr("advertised host"));
  EXPECT_THAT(start_with([](auto& o) { o.format = "A B"; }).message(), HasSubstr("format"));
  EXPECT_THAT(start_with([](auto& o) { o.codecs = ""; }).message(), HasSubstr("codecs"));
  EXPECT_THAT(start_with([](auto& o) { o.idle_timeout = Seconds(0); }).message(),
              HasSubstr("positive"));
  EXPECT_TRUE(start_with([](auto& o) {
                o.bind.host = "0.0.0.0";
                o.advertised_host = "worker-7";
              }).code() == Code::kOk);
}

TEST(Endpoint, TransfersHaveALimit) {
  Pair pair;
  std::vector<std::shared_ptr<OutgoingTransfer>> kept;
  for (std::uint32_t i = 0; i < 4096; ++i) {
    kept.push_back(*pair.a->park(id_of(i), begin_of(1, 1), nullptr));
    ASSERT_TRUE(pair.b->expect(id_of(i), Seconds(1), std::make_shared<CheckingSink>()).ok());
  }
  EXPECT_EQ(pair.a->park(id_of(9999), begin_of(1, 1), nullptr).status().code(), Code::kExhausted);
  EXPECT_EQ(pair.b->expect(id_of(9999), Seconds(1), std::make_shared<CheckingSink>()).code(),
            Code::kExhausted);
}

TEST(Endpoint, PeersHaveALimit) {
  Pair pair;
  Status status;
  for (std::uint16_t i = 0; i < 257; ++i) {
    const auto pushed = pair.a->push({"127.0.0.1", static_cast<std::uint16_t>(5000 + i)}, id_of(i),
                                     begin_of(1, 1), nullptr);
    status = pushed.status();
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("256 peers"));
}

TEST(Endpoint, FullLinksAreWaitedFor) {
  auto network = TestNetwork::create({.faults = {}, .queue_bytes_max = 2000});
  auto a = std::move(*Endpoint::start(*network, options_for_test()));
  auto b = std::move(*Endpoint::start(*network, options_for_test()));
  const TransferBegin begin = begin_of(64 * 20, 3);
  std::vector<std::shared_ptr<CheckingSink>> sinks;
  std::vector<Delivery> deliveries(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CheckingSink>());
    ASSERT_TRUE(b->expect(id_of(i), Seconds(5), sinks.back()).ok());
    auto outgoing = *a->push(b->address(), id_of(i), begin, deliveries[i].callback());
    ASSERT_TRUE(send_all(*outgoing, begin, 1).ok());
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(network->run_until([&] { return deliveries[i].over(); }, Seconds(60)));
    EXPECT_TRUE(deliveries[i].ok()) << deliveries[i].status().message();
    EXPECT_TRUE(sinks[i]->end().has_value());
  }
}

TEST(Endpoint, IdleLinksAreClosedAndDialledAgain) {
  Pair pair;
  Journey first(pair, 1, begin_of(10, 1));
  ASSERT_TRUE(first.send().ok());
  ASSERT_TRUE(pair.run(*first.sink, first.delivery));
  const std::uint64_t before = pair.network->messages();
  pair.network->run_for(Seconds(400));
  EXPECT_EQ(pair.network->messages(), before) << "an idle link is silent";
  Journey second(pair, 2, begin_of(10, 1));
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(pair.run(*second.sink, second.delivery));
  second.expect_success();
  EXPECT_EQ(pair.network->messages(), 2 * before) << "with a new handshake";
}

TEST(Endpoint, CodecsTheReceiverLacksAreRefused) {
  EndpointOptions options = options_for_test();
  options.codecs = "none";
  Pair pair({}, options_for_test(), options);
  Journey journey(pair, 1, {10, 1, "bf16", "splitzip"});
  ASSERT_TRUE(pair.run(*journey.sink, journey.delivery));
  EXPECT_EQ(journey.sink->failure().code(), Code::kUnsupported);
  EXPECT_THAT(journey.delivery.status().message(),
              HasSubstr("codec splitzip, the receiver knows none"));
}

TEST(Endpoint, OtherModelsAndFormatsAreRefusedInTheHandshake) {
  for (const bool other_model : {true, false}) {
    EndpointOptions options = options_for_test();
    if (other_model) options.model = model_named('x');
    if (!other_model) options.format = "fp16";
    std::string refused;
    options.on_refused = [&](const std::string& peer, const Status& why) {
      refused = peer + " " + why.message();
    };
    Pair pair({}, options_for_test(), options);
    Journey journey(pair, 1, begin_of(10, 1));
    ASSERT_TRUE(pair.run(journey.delivery));
    const Status& status = journey.delivery.status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    const std::string names[] = {other_model ? "6d6d6d6d" : "bf16",
                                 other_model ? "78787878" : "fp16"};
    for (const std::string& name : names) {
      EXPECT_THAT(status.message(), HasSubstr(name));
      EXPECT_THAT(refused, HasSubstr(name));
    }
    EXPECT_THAT(refused, HasSubstr("test:"));
    pair.b->cancel(journey.id);
    const auto sink = std::make_shared<CheckingSink>();
    ASSERT_TRUE(pair.a->fetch(pair.b->address(), id_of(5), sink).ok());
    ASSERT_TRUE(pair.run(*sink));
    EXPECT_EQ(sink->failure().code(), Code::kInvalidArgument);
  }
}

TEST(Endpoint, TheDestructorMakesTheLastCalls) {
  Pair pair;
  Journey pushed(pair, 1, begin_of(100, 2));
  Journey parked(pair, 2, begin_of(100, 2), /*parked=*/true);
  Journey failed(pair, 3, begin_of(100, 2));
  failed.outgoing->fail(internal_error("just before"));
  pair.network->run_for(Seconds(0));  // its callback may still be on the way
  pair.a.reset();
  pair.b.reset();
  EXPECT_EQ(pushed.delivery.status().code(), Code::kAborted);
  EXPECT_EQ(parked.delivery.status().code(), Code::kAborted);
  EXPECT_EQ(failed.delivery.status().code(), Code::kInternal);
  EXPECT_EQ(pushed.sink->failure().code(), Code::kAborted);
  EXPECT_EQ(pushed.sink.use_count(), 1);
  pair.network->run_for(Seconds(100));
  EXPECT_EQ(pushed.outgoing->add_frame({}).code(), Code::kAborted);
  pushed.outgoing->finish({});
  parked.outgoing->fail(aborted("late"));
}

}  // namespace
}  // namespace kvlane
