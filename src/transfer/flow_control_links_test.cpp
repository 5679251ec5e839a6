// Receivers without room, over links of every kind (transfer/test_links.h).
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "transfer/test_links.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

class FlowControlOver : public OverLinks {
 protected:
  // So that slabs that were sent too early are there.
  void pause() {
    if (double_) {
      double_->run_for(Seconds(0.1));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Links, FlowControlOver, ::testing::ValuesIn(all_links()), name_of_links);

TEST_P(FlowControlOver, FramesWaitWithTheirSender) {
  HeldJourney journey(*this, 1, begin_of(200, 3));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(begins(journey));
  pause();
  ASSERT_FALSE(journey.sink->over() || journey.delivery.over());
  EXPECT_EQ(journey.sink->slabs(), 0U);
  journey.grant();
  ASSERT_TRUE(run(journey));
  journey.expect_success();
  EXPECT_EQ(journey.sink->slabs(), 12U);
}

TEST_P(FlowControlOver, RoomThatIsThereBeforeThePushCostsNothing) {
  HeldJourney journey(*this, 1, begin_of(200, 3));
  journey.grant();
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(run(journey));
  journey.expect_success();
  if (double_) {
    EXPECT_FALSE(journey.sink->end()->durations.contains("wait_for_memory"));
    EXPECT_EQ(double_->messages(), 2U + 3U + 12U);  // the handshake, BEGIN, END, DONE, slabs
  }
}

TEST_P(FlowControlOver, GrantingIsIdempotentAndNamesWhatIsOver) {
  EXPECT_EQ(b->grant(id_of(1), CheckingSink()).code(), Code::kNotFound);
  HeldJourney journey(*this, 1, begin_of(1, 1));
  journey.grant();
  journey.grant();
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(run(journey));
  EXPECT_EQ(b->grant(id_of(1), *journey.sink).code(), Code::kNotFound);
  Journey roomy(*this, 2, begin_of(1, 1));
  EXPECT_TRUE(b->grant(id_of(2), *roomy.sink).ok()) << "it had room";
  EXPECT_EQ(a->grant(id_of(2), *roomy.sink).code(), Code::kNotFound) << "it is not the receiver";
}

TEST_P(FlowControlOver, WaitingEndsInBoundedTimeOnBothSides) {
  HeldJourney journey(*this, 1, begin_of(200, 3), Seconds(0.25));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(run(journey));
  EXPECT_EQ(journey.sink->failure().code(), Code::kExhausted);
  EXPECT_EQ(journey.delivery.status().code(), Code::kExhausted);
  EXPECT_THAT(journey.delivery.status().message(), HasSubstr("the receiver reports"));
  EXPECT_EQ(a->outgoing_bytes_free(), EndpointOptions().outgoing_bytes_max);
  EXPECT_EQ(b->grant(journey.id, *journey.sink).code(), Code::kNotFound);
}

TEST_P(FlowControlOver, AWorkerThatDiesWhileOneWaitsIsNoticed) {
  for (const bool sender_dies : {true, false}) {
    start();
    HeldJourney journey(*this, 1, begin_of(100, 2));
    ASSERT_TRUE(journey.send().ok());
    ASSERT_TRUE(begins(journey));
    (sender_dies ? a : b).reset();
    ASSERT_TRUE(run(journey));
    EXPECT_EQ((sender_dies ? journey.sink->failure() : journey.delivery.status()).code(),
              Code::kUnavailable);
  }
}

TEST_P(FlowControlOver, CancellingWhileOneWaitsKeepsItsPromise) {
  for (const bool receiver_cancels : {true, false}) {
    start();
    HeldJourney journey(*this, 1, begin_of(100, 2));
    ASSERT_TRUE(journey.send().ok());
    ASSERT_TRUE(begins(journey));
    pause();
    if (!receiver_cancels) {
      journey.outgoing->fail(aborted("on purpose"));
    } else {
      b->cancel(journey.id, *journey.sink);
      EXPECT_EQ(journey.sink.use_count(), 1);
    }
    ASSERT_TRUE(run(journey.delivery));
    EXPECT_EQ(journey.delivery.status().code(), Code::kAborted);
    if (!receiver_cancels) {
      ASSERT_TRUE(run(*journey.sink));
      EXPECT_EQ(journey.sink->failure().code(), Code::kAborted);
    }
    EXPECT_EQ(b->grant(journey.id, *journey.sink).code(), Code::kNotFound);
  }
}

// Whoever was refused an id, or has had its turn, has no say over the one that has it.
TEST_P(FlowControlOver, OnlyTheOneThatReceivesCancelsAndGrants) {
  HeldJourney journey(*this, 1, begin_of(100, 2));
  ASSERT_TRUE(journey.send().ok());
  ASSERT_TRUE(begins(journey));
  const auto other = std::make_shared<CheckingSink>();
  EXPECT_EQ(b->fetch(a->address(), id_of(1), other).code(), Code::kInvalidArgument);
  b->cancel(id_of(1), *other);
  EXPECT_EQ(b->grant(id_of(1), *other).code(), Code::kNotFound);
  pause();
  EXPECT_FALSE(journey.sink->over());
  EXPECT_EQ(journey.sink->slabs(), 0U);
  journey.grant();
  ASSERT_TRUE(run(journey));
  journey.expect_success();
}

// Room comes for one after the other, in the order they asked, while all have been computed.
TEST_P(FlowControlOver, ManyWaitingTransfersGoInTheOrderOfTheirGrants) {
  constexpr std::uint32_t kTransfers = 40;
  std::vector<std::unique_ptr<HeldJourney>> journeys;
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < kTransfers; ++i) {
    journeys.push_back(std::make_unique<HeldJourney>(*this, i, begin_of(64 * (1 + int(i) % 3), 2)));
    ASSERT_TRUE(journeys.back()->send().ok());
    bytes += bytes_for(journeys.back()->begin);
  }
  const std::size_t arena = EndpointOptions().outgoing_bytes_max;
  for (const auto& journey : journeys) ASSERT_TRUE(begins(*journey));
  pause();
  EXPECT_EQ(a->outgoing_bytes_free(), arena - bytes) << "each slab is kept once";
  for (const auto& journey : journeys) {
    ASSERT_FALSE(journey->sink->over());
    journey->grant();
    ASSERT_TRUE(run(*journey));
    journey->expect_success();
    bytes -= bytes_for(journey->begin);
    EXPECT_TRUE(run_until([&] { return a->outgoing_bytes_free() == arena - bytes; }));
  }
}

}  // namespace
}  // namespace kvlane
