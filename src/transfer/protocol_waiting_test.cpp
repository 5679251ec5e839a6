// Flow control against a peer that is played by hand: a receiver without room, a sender that is
// held, and peers that do not care.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/protocol_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

class Waiting : public Protocol {
 protected:
  // A push of this side whose BEGIN was answered with WAIT.
  void begin_without_room(const TransferBegin& begin, Seconds wait = Seconds(30)) {
    ASSERT_TRUE(endpoint_->expect_waiting(id_, wait, sink_).ok());
    connect();
    post(encode_begin(id_, begin));
    ASSERT_EQ(answer(), MessageType::kWait);
    EXPECT_TRUE(body().empty());
  }
  // "I am here and need nothing" of round 0 has come: go.
  void expect_go() {
    ASSERT_EQ(answer(), MessageType::kMissing);
    const Missing missing = *decode_missing(body());
    EXPECT_EQ(missing.round, 0U);
    EXPECT_TRUE(missing.slabs.empty());
  }
  // How many messages of a type have come since the last answer(); they count as read.
  int count_new(MessageType type) {
    const auto messages = events_->messages();
    int count = 0;
    for (; read_ < messages.size(); ++read_) {
      count += parse_message(messages[read_])->header.type == type;
    }
    return count;
  }
};

// The endpoint receives.

TEST_F(Waiting, NothingIsKeptBeforeThereIsRoom) {
  const TransferBegin begin = begin_of(100, 1);
  begin_without_room(begin);
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_TRUE(silent());
  post(encode_begin(id_, begin));
  EXPECT_EQ(answer(), MessageType::kWait);
  EXPECT_EQ(sink_->slabs(), 0U);
  ASSERT_TRUE(endpoint_->grant(id_, *sink_).ok());
  expect_go();
  post(encode_slab(id_, frame_of(begin, {0, 1})));
  post(encode_end(id_, {0, end_of(1)}));
  ASSERT_EQ(answer(), MessageType::kMissing);
  EXPECT_EQ(decode_missing(body())->slabs, (std::vector<SlabName>{{0, 0}}));
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  EXPECT_EQ(answer(), MessageType::kDone);
}

TEST_F(Waiting, ALostGoIsRepairedByTheNextBegin) {
  const TransferBegin begin = begin_of(1, 1);
  begin_without_room(begin);
  TestFaults faults;
  faults.loss = 1;
  network_->set_faults(faults);
  ASSERT_TRUE(endpoint_->grant(id_, *sink_).ok());
  EXPECT_TRUE(silent());
  network_->set_faults({});
  post(encode_begin(id_, begin));
  expect_go();
}

TEST_F(Waiting, RoomBeforeBeginNeedsNoWait) {
  const TransferBegin begin = begin_of(1, 1);
  ASSERT_TRUE(endpoint_->expect_waiting(id_, Seconds(30), sink_).ok());
  ASSERT_TRUE(endpoint_->grant(id_, *sink_).ok());
  connect();
  post(encode_begin(id_, begin));
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(answer(), MessageType::kDone);
}

TEST_F(Waiting, ASenderThatDoesNotWaitGainsNothing) {
  const TransferBegin begin = begin_of(64 * 50, 2);
  begin_without_room(begin, Seconds(3));
  for (int i = 0; i < 250; ++i) {
    const SlabName slab{static_cast<std::uint32_t>(i % 2), static_cast<std::uint32_t>(i / 2 % 50)};
    post(encode_slab(id_, frame_of(begin, slab)));
    if (i % 50 == 0) {
      Bytes broken = frame_of(begin, slab);
      broken.back() ^= std::byte{1};
      post(encode_slab(id_, broken));
      post(encode_slab(id_, frame_of(begin_of(1, 9), {8, 0})));  // of another transfer
    }
    run(0.01);
  }
  ASSERT_FALSE(sink_->over());
  EXPECT_EQ(sink_->slabs(), 0U);
  // A heartbeat is an eighth of a second here, and ticks come every half one.
  const int waits = count_new(MessageType::kWait);
  EXPECT_GE(waits, 10);
  EXPECT_LE(waits, 20);
  run(0.6);  // its time is up
  EXPECT_EQ(sink_->failure().code(), Code::kExhausted);
  EXPECT_THAT(sink_->failure().message(), HasSubstr("no room for transfer"));
  EXPECT_THAT(sink_->failure().message(), HasSubstr("within 3 s"));
  EXPECT_EQ(error().code(), Code::kExhausted);
  // Who asks later hears the same.
  post(encode_begin(id_, begin));
  EXPECT_EQ(error().code(), Code::kExhausted);
}

TEST_F(Waiting, ABeginThatChangesEndsTheTransfer) {
  begin_without_room(begin_of(100, 2));
  post(encode_begin(id_, begin_of(100, 3)));
  EXPECT_EQ(error().code(), Code::kCorrupt);
  EXPECT_EQ(endpoint_->grant(id_, *sink_).code(), Code::kNotFound);
}

TEST_F(Waiting, ASenderThatFallsSilentIsGivenUp) {
  begin_without_room(begin_of(1, 1));
  run(1.5);
  EXPECT_FALSE(sink_->over());
  run(1);
  EXPECT_EQ(sink_->failure().code(), Code::kTimeout);
}

TEST_F(Waiting, ASenderThatFailsIsHeard) {
  begin_without_room(begin_of(1, 1));
  post(encode_error(id_, exhausted("no memory")));
  run();
  EXPECT_EQ(sink_->failure().code(), Code::kExhausted);
}

TEST_F(Waiting, AnotherLinkCannotTouchATransfer) {
  const TransferBegin begin = begin_of(1, 1);
  begin_without_room(begin);
  const auto first_events = events_;
  const auto first = link_;
  const std::size_t first_read = read_;
  events_ = std::make_shared<RecordingEvents>();
  read_ = 0;
  connect();
  post(encode_begin(id_, begin));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_error(id_, aborted("stop that")));
  EXPECT_TRUE(silent());
  ASSERT_TRUE(endpoint_->grant(id_, *sink_).ok());
  EXPECT_TRUE(silent()) << "the go is not for this link";
  EXPECT_EQ(first_events->messages().size(), first_read + 1);
}

TEST_F(Waiting, TheSinkMayRefuseOrGrantWithinItsFirstCall) {
  sink_->hook = [](const char*) { return invalid_argument("another prompt"); };
  ASSERT_TRUE(endpoint_->expect_waiting(id_, Seconds(30), sink_).ok());
  connect();
  post(encode_begin(id_, begin_of(1, 1)));
  EXPECT_EQ(error().code(), Code::kInvalidArgument);

  const auto willing = std::make_shared<CheckingSink>();
  willing->hook = [&](const char* call) {
    return call == std::string("begin") ? endpoint_->grant(id_of(2), *willing) : Status();
  };
  ASSERT_TRUE(endpoint_->expect_waiting(id_of(2), Seconds(30), willing).ok());
  post(encode_begin(id_of(2), begin_of(1, 1)));
  expect_go();
  EXPECT_TRUE(silent()) << "no WAIT behind the go";
}

// The endpoint sends.

TEST_F(Waiting, AHeldSenderSaysBeginAndNothingElse) {
  const TransferBegin begin = begin_of(64, 3);
  receive_push(begin, /*finish=*/false);
  ASSERT_TRUE(add_frame(*outgoing_, frame_of(begin, {0, 0})).ok());
  ASSERT_EQ(answer(), MessageType::kSlab) << "there may be room";
  post(encode_wait(id_));
  run();
  for (const std::uint32_t layer : {1U, 2U}) {
    ASSERT_TRUE(add_frame(*outgoing_, frame_of(begin, {layer, 0})).ok());
  }
  outgoing_->finish(end_of(1));
  EXPECT_TRUE(silent());
  for (int i = 0; i < 40; ++i) {
    run(0.2);
    const std::size_t before = read_;
    const int begins = count_new(MessageType::kBegin);
    EXPECT_GE(begins, 1);
    EXPECT_EQ(read_ - before, std::size_t(begins)) << "neither SLAB nor END";
    post(encode_wait(id_));
  }
  ASSERT_FALSE(delivery_.over());
  post(encode_missing(id_, {0, {}}));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(answer(), MessageType::kSlab);
  ASSERT_EQ(answer(), MessageType::kEnd);
  const Result<NumberedEnd> end = decode_end(body());
  EXPECT_EQ(end->round, 0U);
  EXPECT_GT(end->end.durations.at("wait_for_memory"), 8);
  post(encode_done(id_, {}));
  run();
  EXPECT_TRUE(delivery_.over() && delivery_.ok());
}

// A receiver that says WAIT without being asked still hears that its sender is there.
TEST_F(Waiting, AHeldSenderIsNotSilencedByATalkativeReceiver) {
  receive_push(begin_of(1, 1), /*finish=*/true);
  for (int i = 0; i < 50; ++i) {
    post(encode_wait(id_));
    run(0.05);
  }
  EXPECT_GE(count_new(MessageType::kBegin), 10) << "in 20 heartbeats";
}

TEST_F(Waiting, RoomIsNeverTakenBack) {
  const TransferBegin begin = begin_of(64, 2);
  receive_push(begin, /*finish=*/false);
  post(encode_missing(id_, {0, {}}));
  post(encode_wait(id_));  // overtaken by the go
  run();
  ASSERT_TRUE(send_all(*outgoing_, begin, 1).ok());
  for (int i = 0; i < 2; ++i) ASSERT_EQ(answer(), MessageType::kSlab);
  ASSERT_EQ(answer(), MessageType::kEnd);
  post(encode_wait(id_));
  post(encode_missing(id_, {1, {{1, 0}}}));
  ASSERT_EQ(answer(), MessageType::kSlab);
  ASSERT_EQ(answer(), MessageType::kEnd);
}

TEST_F(Waiting, WhatTheReceiverNamesReplacesWhatIsQueued) {
  const TransferBegin begin = begin_of(64 * 4, 1);
  receive_push(begin, /*finish=*/true);
  post(encode_wait(id_));
  run();
  // Room came while END was on its way, and the go got lost.
  post(encode_missing(id_, {1, {{0, 3}}}));
  ASSERT_EQ(answer(), MessageType::kSlab);
  ASSERT_EQ(answer(), MessageType::kEnd);
  EXPECT_EQ(decode_end(body())->round, 1U);
  EXPECT_TRUE(silent());
}

TEST_F(Waiting, AskingOrThankingTooEarlyEndsAHeldTransfer) {
  for (const bool thank : {true, false}) {
    delivery_ = {};
    events_ = std::make_shared<RecordingEvents>();
    read_ = 0;
    receive_push(begin_of(100, 2), /*finish=*/false);
    post(encode_wait(id_));
    EXPECT_TRUE(silent());
    post(thank ? encode_done(id_, {}) : encode_missing(id_, {1, {{0, 0}}}));
    EXPECT_EQ(error().code(), Code::kCorrupt);
    EXPECT_EQ(delivery_.status().code(), Code::kCorrupt);
  }
}

TEST_F(Waiting, AReceiverThatFallsSilentIsGivenUp) {
  receive_push(begin_of(1, 1), /*finish=*/true);
  post(encode_wait(id_));
  run(1.5);
  EXPECT_FALSE(delivery_.over());
  run(1);
  ASSERT_TRUE(delivery_.over());
  EXPECT_EQ(delivery_.status().code(), Code::kTimeout);
}

TEST_F(Waiting, AReceiverThatNeverHasRoomIsGivenUp) {
  const TransferBegin begin = begin_of(1, 1);
  receive_push(begin, /*finish=*/false);
  const auto say_wait_for = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      post(encode_wait(id_));
      run(1);
    }
  };
  say_wait_for(90);  // it is still being computed
  ASSERT_FALSE(delivery_.over());
  ASSERT_TRUE(send_all(*outgoing_, begin, 1).ok());
  say_wait_for(59);
  ASSERT_FALSE(delivery_.over());
  say_wait_for(2);
  ASSERT_TRUE(delivery_.over());
  EXPECT_EQ(delivery_.status().code(), Code::kTimeout);
  EXPECT_THAT(delivery_.status().message(), HasSubstr("had no room within 60 s"));
  EXPECT_EQ(endpoint_->outgoing_bytes_free(), EndpointOptions().outgoing_bytes_max);
  (void)count_new(MessageType::kBegin);
  post(encode_wait(id_));
  EXPECT_EQ(error().code(), Code::kTimeout);
}

TEST_F(Waiting, AReceiverThatGivesUpIsHeard) {
  receive_push(begin_of(1, 1), /*finish=*/true);
  post(encode_wait(id_));
  post(encode_error(id_, exhausted("no room within 60 s")));
  run();
  ASSERT_TRUE(delivery_.over());
  EXPECT_EQ(delivery_.status().code(), Code::kExhausted);
}

TEST_F(Waiting, UnknownTransfersCannotBeHeld) {
  connect();
  post(encode_wait(id_));
  EXPECT_EQ(error().code(), Code::kNotFound);
  // Nor those of the other role, or of another link.
  ASSERT_TRUE(endpoint_->expect(id_, Seconds(30), sink_).ok());
  post(encode_wait(id_));
  EXPECT_EQ(error().code(), Code::kNotFound);
  outgoing_ = *endpoint_->park(id_of(2), begin_of(1, 1), bytes_for(begin_of(1, 1)), nullptr);
  post(encode_wait(id_of(2)));
  EXPECT_EQ(error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace kvlane
