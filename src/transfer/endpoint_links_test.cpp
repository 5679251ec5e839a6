// What endpoints promise over links of every kind (transfer/test_links.h).
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "transfer/test_links.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

class EndpointOver : public OverLinks {};

INSTANTIATE_TEST_SUITE_P(Links, EndpointOver, ::testing::ValuesIn(all_links()), name_of_links);

TEST_P(EndpointOver, PushArrives) {
  Journey journey(*this, 1, begin_of(200, 3));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(run(journey));
  journey.expect_success();
  EXPECT_EQ(journey.sink->slabs(), 12U);
}

TEST_P(EndpointOver, SlabsAreFramedWhereTheyAreSentFrom) {
  Journey journey(*this, 1, begin_of(65, 2));
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
  ASSERT_TRUE(run(journey));
  journey.expect_success();
}

TEST_P(EndpointOver, ParkedFramesAreFetched) {
  Journey journey(*this, 1, begin_of(65, 2), /*parked=*/true);
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(fetch(journey).ok());
  ASSERT_TRUE(run(journey));
  journey.expect_success();
}

TEST_P(EndpointOver, ParkedFramesAreFetchedBeforeTheLastIsThere) {
  Journey journey(*this, 1, begin_of(65, 2), /*parked=*/true);
  ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
  ASSERT_TRUE(fetch(journey).ok());
  ASSERT_TRUE(has_slabs(journey, 1));
  for (const SlabName slab : {SlabName{0, 1}, SlabName{1, 0}, SlabName{1, 1}}) {
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, slab)).ok());
  }
  journey.outgoing->finish(end_of(17));
  ASSERT_TRUE(run(journey));
  journey.expect_success();
}

TEST_P(EndpointOver, OneLinkServesManyTransfers) {
  std::vector<std::unique_ptr<Journey>> journeys;
  for (std::uint32_t i = 0; i < 40; ++i) {
    journeys.push_back(std::make_unique<Journey>(*this, i, begin_of(70 + int(i), 2)));
    ASSERT_TRUE(journeys.back()->send().ok());
  }
  for (const auto& journey : journeys) {
    ASSERT_TRUE(run(*journey));
    journey->expect_success();
  }
  if (double_) {
    // HELLO and HELLO_ACK once; per transfer 4 slabs, BEGIN, END, DONE.
    EXPECT_EQ(double_->messages(), 2U + 40U * 7U);
  } else {
    const LinkCounts links = a->links();
    EXPECT_EQ(links.tcp + links.shared_memory + links.ucx, 1);
  }
}

TEST_P(EndpointOver, BothDirectionsAtOnceAndToItself) {
  Journey there(*this, 1, begin_of(100, 2));
  const auto sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  ASSERT_TRUE(a->expect(id_of(1), Seconds(30), sink).ok());  // the same id, the other role
  auto back =
      *b->push(a->address(), id_of(1), there.begin, bytes_for(there.begin), delivery.callback());
  const auto own_sink = std::make_shared<CheckingSink>();
  Delivery own;
  ASSERT_TRUE(a->expect(id_of(3), Seconds(30), own_sink).ok());
  auto self = *a->push(a->address(), id_of(3), there.begin, bytes_for(there.begin), own.callback());
  ASSERT_TRUE(there.send().ok());
  ASSERT_TRUE(send_all(*back, there.begin, 5).ok());
  ASSERT_TRUE(send_all(*self, there.begin, 6).ok());
  ASSERT_TRUE(run(there) && run(*sink) && run(delivery) && run(*own_sink) && run(own));
  there.expect_success();
  EXPECT_TRUE(delivery.ok());
  EXPECT_EQ(own_sink->end()->first.at(0).token, 6);
}

// Who is refused.

TEST_P(EndpointOver, NobodyThereFailsAtOnce) {
  const Address nowhere = nobody();
  Delivery delivery;
  auto outgoing =
      *a->push(nowhere, id_of(1), begin_of(1, 1), bytes_for(begin_of(1, 1)), delivery.callback());
  ASSERT_TRUE(run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kUnavailable);
  EXPECT_THAT(delivery.status().message(), HasSubstr(to_string(nowhere)));
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(b->fetch(nowhere, id_of(1), sink).ok());
  ASSERT_TRUE(run(*sink));
  EXPECT_EQ(sink->failure().code(), Code::kUnavailable);
}

TEST_P(EndpointOver, UnexpectedPushesAreRefused) {
  Delivery delivery;
  auto outgoing = *a->push(b->address(), id_of(1), begin_of(1, 1), bytes_for(begin_of(1, 1)),
                           delivery.callback());
  ASSERT_TRUE(run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kNotFound);
  EXPECT_THAT(delivery.status().message(), HasSubstr("not expected here"));
  EXPECT_EQ(add_frame(*outgoing, frame_of(begin_of(1, 1), {0, 0})).code(), Code::kNotFound);
}

TEST_P(EndpointOver, UnknownFetchesAreRefused) {
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(b->fetch(a->address(), id_of(1), sink).ok());
  ASSERT_TRUE(run(*sink));
  EXPECT_EQ(sink->failure().code(), Code::kNotFound);
  EXPECT_THAT(sink->failure().message(), HasSubstr("not parked here"));
}

TEST_P(EndpointOver, ParkedFramesGoToOneWorkerOnly) {
  const auto third = worker();
  Journey journey(*this, 1, begin_of(100, 2), /*parked=*/true);
  ASSERT_TRUE(fetch(journey).ok());
  ASSERT_TRUE(begins(journey));
  const auto late = std::make_shared<CheckingSink>();
  ASSERT_TRUE(third->fetch(a->address(), journey.id, late).ok());
  ASSERT_TRUE(run(*late));
  EXPECT_EQ(late->failure().code(), Code::kUnavailable);
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(run(journey));
  journey.expect_success();
  const auto later = std::make_shared<CheckingSink>();
  ASSERT_TRUE(third->fetch(a->address(), journey.id, later).ok());
  ASSERT_TRUE(run(*later));
  EXPECT_THAT(later->failure().message(), HasSubstr("already delivered"));
}

TEST_P(EndpointOver, CodecsTheReceiverLacksAreRefused) {
  EndpointOptions options = options_for_test();
  options.codecs = "none";
  start(options_for_test(), options);
  Journey journey(*this, 1, {10, 1, "bf16", "splitzip"});
  ASSERT_TRUE(run(journey));
  EXPECT_EQ(journey.sink->failure().code(), Code::kUnsupported);
  EXPECT_THAT(journey.delivery.status().message(),
              HasSubstr("codec splitzip, the receiver knows none"));
}

TEST_P(EndpointOver, OtherModelsAndFormatsAreRefusedInTheHandshake) {
  for (const bool other_model : {true, false}) {
    EndpointOptions options = options_for_test();
    if (other_model) options.model = model_named('x');
    if (!other_model) options.format = "fp16";
    std::mutex mutex;
    std::string refused;
    options.on_refused = [&](const std::string& peer, const Status& why) {
      const std::lock_guard lock(mutex);
      refused = peer + " " + why.message();
    };
    start(options_for_test(), options);
    Journey journey(*this, 1, begin_of(10, 1));
    ASSERT_TRUE(run(journey.delivery));
    const Status& status = journey.delivery.status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    {
      const std::lock_guard lock(mutex);
      const std::string names[] = {other_model ? "6d6d6d6d" : "bf16",
                                   other_model ? "78787878" : "fp16"};
      for (const std::string& name : names) {
        EXPECT_THAT(status.message(), HasSubstr(name));
        EXPECT_THAT(refused, HasSubstr(name));
      }
      EXPECT_THAT(refused, HasSubstr(double_ ? "test:" : "127.0.0.1"));
    }
    b->cancel(journey.id, *journey.sink);
    const auto sink = std::make_shared<CheckingSink>();
    ASSERT_TRUE(a->fetch(b->address(), id_of(5), sink).ok());
    ASSERT_TRUE(run(*sink));
    EXPECT_EQ(sink->failure().code(), Code::kInvalidArgument);
    a.reset();
    b.reset();  // before what its calls refer to
  }
}

// Ends.

TEST_P(EndpointOver, ExpectingEndsAfterItsWait) {
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(b->expect(id_of(1), Seconds(0.25), sink).ok());
  if (double_) {
    double_->run_for(Seconds(0.24));
    EXPECT_FALSE(sink->over());
  }
  ASSERT_TRUE(run(*sink));
  EXPECT_EQ(sink->failure().code(), Code::kTimeout);
  EXPECT_THAT(sink->failure().message(), HasSubstr("within 0.25 s"));
  // Who comes too late hears why.
  Delivery delivery;
  auto outgoing = *a->push(b->address(), id_of(1), begin_of(1, 1), bytes_for(begin_of(1, 1)),
                           delivery.callback());
  ASSERT_TRUE(run(delivery));
  EXPECT_EQ(delivery.status().code(), Code::kTimeout);
}

TEST_P(EndpointOver, LeasesExpire) {
  EndpointOptions options = options_for_test();
  options.lease = Seconds(0.25);
  start(options);
  Journey journey(*this, 1, begin_of(1, 1), /*parked=*/true);
  ASSERT_TRUE(journey.send().ok());
  if (double_) {
    double_->run_for(Seconds(0.24));
    EXPECT_FALSE(journey.delivery.over());
  }
  ASSERT_TRUE(run(journey.delivery));
  EXPECT_EQ(journey.delivery.status().code(), Code::kTimeout);
  ASSERT_TRUE(fetch(journey).ok());
  ASSERT_TRUE(run(*journey.sink));
  EXPECT_EQ(journey.sink->failure().code(), Code::kTimeout);
  EXPECT_THAT(journey.sink->failure().message(), HasSubstr("nobody fetched"));
}

TEST_P(EndpointOver, AWorkerThatDiesFailsItsTransfers) {
  for (const bool sender_dies : {true, false}) {
    start();
    Journey journey(*this, 1, begin_of(100, 2));
    ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
    ASSERT_TRUE(has_slabs(journey, 1));
    (sender_dies ? a : b).reset();
    // The dying side's own calls come at once, the other's when the link has ended.
    EXPECT_TRUE(sender_dies ? journey.delivery.over() : journey.sink->over());
    if (double_) {
      EXPECT_FALSE(sender_dies ? journey.sink->over() : journey.delivery.over());
    }
    ASSERT_TRUE(run(journey));
    EXPECT_EQ(journey.sink->failure().code(), sender_dies ? Code::kUnavailable : Code::kAborted);
    EXPECT_EQ(journey.delivery.status().code(), sender_dies ? Code::kAborted : Code::kUnavailable);
    EXPECT_EQ(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 1})).code(),
              sender_dies ? Code::kAborted : Code::kUnavailable);
  }
}

TEST_P(EndpointOver, ErrorsOfTheSenderReachTheReceiver) {
  Journey journey(*this, 1, begin_of(100, 2));
  ASSERT_TRUE(begins(journey));
  journey.outgoing->fail(exhausted("no memory for layer 1"));
  ASSERT_TRUE(run(journey));
  EXPECT_EQ(journey.sink->failure().code(), Code::kExhausted);
  EXPECT_THAT(journey.sink->failure().message(), HasSubstr("no memory for layer 1"));
  EXPECT_EQ(journey.delivery.status().message(), "no memory for layer 1");
}

TEST_P(EndpointOver, ErrorsOfTheSinkReachTheSender) {
  for (const std::string at : {"begin", "slab"}) {
    start();
    Journey journey(*this, 1, begin_of(100, 2), /*parked=*/false, [&](const char* call) {
      return call == at ? exhausted("no blocks left") : Status();
    });
    (void)journey.send();  // the error may come back before the last slab is there
    ASSERT_TRUE(run(journey));
    EXPECT_EQ(journey.sink->failure().message(), "no blocks left");
    EXPECT_EQ(journey.delivery.status().code(), Code::kExhausted);
    EXPECT_THAT(journey.delivery.status().message(), HasSubstr("the receiver reports"));
  }
}

TEST_P(EndpointOver, AHandleThatIsDroppedEndsItsTransfer) {
  Journey journey(*this, 1, begin_of(100, 2));
  ASSERT_TRUE(begins(journey));
  journey.outgoing.reset();
  ASSERT_TRUE(run(journey));
  EXPECT_EQ(journey.sink->failure().code(), Code::kAborted);
  EXPECT_EQ(journey.delivery.status().code(), Code::kAborted);
}

TEST_P(EndpointOver, FinishedTransfersDoNotNeedTheirHandle) {
  Journey journey(*this, 1, begin_of(100, 2));
  ASSERT_TRUE(journey.send().ok());
  journey.outgoing.reset();
  ASSERT_TRUE(run(journey));
  journey.expect_success();
}

TEST_P(EndpointOver, EndingTooEarlyIsAnError) {
  Journey journey(*this, 1, begin_of(100, 2));
  ASSERT_TRUE(add_frame(*journey.outgoing, frame_of(journey.begin, {0, 0})).ok());
  ASSERT_TRUE(has_slabs(journey, 1));
  journey.outgoing->finish(end_of(1));
  ASSERT_TRUE(run(journey));
  EXPECT_EQ(journey.delivery.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(journey.delivery.status().message(), HasSubstr("1 of 4 slabs"));
}

// Cancelling.

TEST_P(EndpointOver, CancelFromWithinEveryCall) {
  for (const std::string at : {"begin", "slab", "end", "failed"}) {
    start();
    std::atomic<bool> done = false;
    Journey journey(*this, 1, begin_of(200, 2), /*parked=*/false, [&](const char* call) {
      if (call == at) {
        b->cancel(id_of(1), *journey.sink);
        done = true;
      }
      return Status();
    });
    if (at == "failed") {
      ASSERT_TRUE(begins(journey));
      journey.outgoing->fail(internal_error("on purpose"));
      ASSERT_TRUE(run(*journey.sink));
    } else {
      (void)journey.send();  // it may be told before the last slab is there
    }
    ASSERT_TRUE(run(journey.delivery));
    ASSERT_TRUE(run_until([&] { return done.load(); }));
    EXPECT_TRUE(lets_go_of(journey.sink)) << at;
    EXPECT_EQ(journey.delivery.ok(), at == "end") << at;
  }
}

TEST_P(EndpointOver, UnknownCancelsAreIgnored) {
  const CheckingSink sink;
  a->cancel(id_of(1), sink);
  a->cancel({}, sink);
}

TEST_P(EndpointOver, ACancelledIdCanBeUsedAgain) {
  const auto sink = std::make_shared<CheckingSink>();
  ASSERT_TRUE(b->expect(id_of(1), Seconds(5), sink).ok());
  EXPECT_EQ(b->expect(id_of(1), Seconds(5), sink).code(), Code::kInvalidArgument);
  b->cancel(id_of(1), *sink);
  Journey journey(*this, 1, begin_of(10, 1));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(run(journey));
  journey.expect_success();
}

}  // namespace
}  // namespace kvlane
