// An endpoint against a peer that is played by hand: every rule of spec/transfer.md that a good
// peer never makes use of.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/protocol_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

// Handshake.

TEST_F(Protocol, HelloIsAnsweredEveryTime) {
  connect();
  Hello told = *decode_hello(body());
  EXPECT_EQ(told.model, model_named('m'));
  EXPECT_EQ(told.address, endpoint_->address());
  EXPECT_EQ(told.codecs, (std::vector<std::string>{"none", "splitzip"}));
  post(encode_hello(MessageType::kHello, hello_of_peer()));
  EXPECT_EQ(answer(), MessageType::kHelloAck);
}

TEST_F(Protocol, AnythingBeforeHelloIsRefused) {
  const Bytes early[] = {encode_begin(id_, begin_of(1, 1)),
                         encode_slab(id_, frame_of(begin_of(1, 1), {0, 0})),
                         encode_end(id_, {0, {}}),
                         encode_missing(id_, {}),
                         encode_done(id_, {}),
                         encode_fetch(id_),
                         encode_error(id_, aborted("too early")),
                         encode_hello(MessageType::kHelloAck, hello_of_peer()),
                         encode_reject(aborted("no"))};
  for (const Bytes& message : early) {
    events_ = std::make_shared<RecordingEvents>();
    connect(/*greet=*/false);
    post(message);
    expect_refused("unexpected");
  }
}

TEST_F(Protocol, RolesOfTheHandshakeAreNotMixed) {
  connect();
  post(encode_hello(MessageType::kHelloAck, hello_of_peer()));
  expect_refused("unexpected HELLO_ACK");
}

TEST_F(Protocol, AConnectorIsNotGreeted) {
  listen();
  outgoing_ = *endpoint_->push(address_, id_, begin_of(1, 1), bytes_for(begin_of(1, 1)),
                               delivery_.callback());
  ASSERT_EQ(answer(), MessageType::kHello);
  post(encode_hello(MessageType::kHello, hello_of_peer()));
  expect_refused("unexpected HELLO");
  EXPECT_EQ(delivery_.status().code(), Code::kCorrupt);
}

TEST_F(Protocol, RejectFailsWhatWaits) {
  listen();
  outgoing_ = *endpoint_->push(address_, id_, begin_of(1, 1), bytes_for(begin_of(1, 1)),
                               delivery_.callback());
  ASSERT_EQ(answer(), MessageType::kHello);
  post(encode_reject(invalid_argument("I hold another model")));
  run();
  EXPECT_EQ(delivery_.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(delivery_.status().message(), HasSubstr("reports: I hold another model"));
  EXPECT_TRUE(events_->closed().has_value());
}

TEST_F(Protocol, AnAnswerOfAnotherModelIsRefused) {
  listen();
  outgoing_ = *endpoint_->push(address_, id_, begin_of(1, 1), bytes_for(begin_of(1, 1)),
                               delivery_.callback());
  ASSERT_EQ(answer(), MessageType::kHello);
  Hello other = hello_of_peer();
  other.model = model_named('x');
  post(encode_hello(MessageType::kHelloAck, other));
  expect_refused("78787878");
  EXPECT_EQ(delivery_.status().code(), Code::kInvalidArgument);
}

TEST_F(Protocol, TheHandshakeHasALimitOnBothSides) {
  connect(/*greet=*/false);
  run(2.5);
  EXPECT_TRUE(events_->closed().has_value());

  events_ = std::make_shared<RecordingEvents>();
  listen();
  outgoing_ = *endpoint_->push(address_, id_, begin_of(1, 1), bytes_for(begin_of(1, 1)),
                               delivery_.callback());
  run(2.5);
  EXPECT_EQ(delivery_.status().code(), Code::kTimeout);
  EXPECT_THAT(delivery_.status().message(), HasSubstr("did not greet within 2 s"));
  EXPECT_GT(events_->messages().size(), 10U) << "HELLO is repeated";
}

TEST_F(Protocol, BrokenMessagesEndTheLink) {
  const std::pair<Bytes, const char*> broken[] = {
      {Bytes(48), "does not speak"},
      {seal_text(MessageType::kBegin, id_, "{}"), "BEGIN: the member \"tokens\""},
      {seal_text(MessageType::kEnd, id_, "[]"), "END: the body is no JSON object"},
      {seal_text(MessageType::kDone, id_, "x"), "DONE"},
      {seal_text(MessageType::kMissing, id_, "123"), "MISSING"},
      {seal_text(MessageType::kError, id_, "{}"), "ERROR: the member \"code\""},
      {seal_text(MessageType::kError, {}, "{}"), "ERROR: the member \"code\""},
      {seal_text(MessageType::kHello, {}, "{}"), "HELLO: the member \"engine\""},
  };
  for (const auto& [message, sentence] : broken) {
    events_ = std::make_shared<RecordingEvents>();
    read_ = 0;
    connect();
    post(message);
    expect_refused(sentence);
  }
}

TEST_F(Protocol, ErrorsAboutTheLinkEndIt) {
  begin_push(begin_of(1, 1));
  post(encode_error({}, unsupported("I speak version 2")));
  run();
  EXPECT_TRUE(events_->closed().has_value());
  EXPECT_EQ(sink_->failure().code(), Code::kUnsupported);
  EXPECT_THAT(sink_->failure().message(), HasSubstr("I speak version 2"));
}

// The endpoint receives.

TEST_F(Protocol, DuplicatesAreIgnored) {
  const TransferBegin begin = begin_of(100, 1);
  begin_push(begin);
  post(encode_slab(id_, frame_of(begin, {0, 1})));
  post(encode_slab(id_, frame_of(begin, {0, 1})));
  post(encode_begin(id_, begin));
  EXPECT_EQ(answer(), MessageType::kMissing);  // "I am here"
  EXPECT_TRUE(decode_missing(body())->slabs.empty());
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(answer(), MessageType::kDone);
  EXPECT_TRUE(sink_->end().has_value());
  // DONE may have been lost: it is told as often as it is asked for.
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(answer(), MessageType::kDone);
  post(encode_begin(id_, begin));
  EXPECT_EQ(answer(), MessageType::kDone);
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  post(encode_error(id_, aborted("too late")));
  EXPECT_TRUE(silent());
}

TEST_F(Protocol, MissingSlabsAreNamed) {
  const TransferBegin begin = begin_of(100, 2);
  begin_push(begin);
  post(encode_slab(id_, frame_of(begin, {1, 0})));
  post(encode_end(id_, {0, end_of(1)}));
  ASSERT_EQ(answer(), MessageType::kMissing);
  const Missing missing = *decode_missing(body());
  EXPECT_EQ(missing.round, 1U);
  EXPECT_EQ(missing.slabs, (std::vector<SlabName>{{0, 0}, {0, 1}, {1, 1}}));
  post(encode_end(id_, {0, end_of(1)}));  // an old round
  EXPECT_TRUE(silent());
  for (const SlabName& slab : missing.slabs) post(encode_slab(id_, frame_of(begin, slab)));
  EXPECT_EQ(answer(), MessageType::kDone) << "without another END";
}

TEST_F(Protocol, FruitlessRoundsHaveALimit) {
  begin_push(begin_of(1, 1));
  for (std::uint32_t round = 0; round < 8; ++round) {
    post(encode_end(id_, {round, end_of(1)}));
    ASSERT_EQ(answer(), MessageType::kMissing);
    EXPECT_EQ(decode_missing(body())->round, round + 1);
  }
  post(encode_end(id_, {8, end_of(1)}));
  EXPECT_EQ(error().code(), Code::kUnavailable);
  EXPECT_THAT(sink_->failure().message(), HasSubstr("1 of 1 slabs did not come"));
}

TEST_F(Protocol, CorruptFramesAreAskedForAgain) {
  const TransferBegin begin = begin_of(1, 1);
  begin_push(begin);
  Bytes frame = frame_of(begin, {0, 0});
  frame.back() ^= std::byte{1};
  post(encode_slab(id_, frame));
  frame[20] ^= std::byte{1};
  post(encode_slab(id_, frame));
  post(encode_slab(id_, {}));
  post(encode_end(id_, {0, end_of(1)}));
  ASSERT_EQ(answer(), MessageType::kMissing);
  EXPECT_EQ(decode_missing(body())->slabs.size(), 1U);
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  EXPECT_EQ(answer(), MessageType::kDone);
}

TEST_F(Protocol, FramesOfAnotherTransferEndThis) {
  const std::pair<std::function<void(FrameHeader&)>, const char*> wrong[] = {
      {[](FrameHeader& h) { h.model = model_named('x'); }, "model 7878"},
      {[](FrameHeader& h) { h.format = "fp16", h.type = ElementType::kFp16; }, "format fp16"},
      {[](FrameHeader& h) { h.codec = "splitzip"; }, "codec splitzip"},
      {[](FrameHeader& h) { h.layer = 2; }, "layer 2"},
      {[](FrameHeader& h) { h.position = 128; }, "position 128"},
      {[](FrameHeader& h) { h.tokens = 1; }, "1 tokens"},
  };
  for (const auto& [change, sentence] : wrong) {
    events_ = std::make_shared<RecordingEvents>();
    sink_ = std::make_shared<CheckingSink>();
    read_ = 0;
    const TransferBegin begin = begin_of(100, 2);
    begin_push(begin);
    FrameHeader header = frame_header_of(begin, {1, 1});
    change(header);
    post(encode_slab(id_, frame_with(header, {1, 1})));
    const Status told = error();
    EXPECT_EQ(told.code(), Code::kCorrupt);
    EXPECT_THAT(told.message(), HasSubstr(sentence));
    EXPECT_THAT(sink_->failure().message(), HasSubstr(sentence));
    EXPECT_EQ(sink_->slabs(), 0U);
  }
}

TEST_F(Protocol, UncodedFramesMayReplaceCodedOnes) {
  EXPECT_TRUE(endpoint_->expect(id_, Seconds(30), sink_).ok());
  connect();
  const TransferBegin begin{1, 1, "bf16", "splitzip"};
  post(encode_begin(id_, begin));
  FrameHeader header = frame_header_of(begin, {0, 0});
  header.codec = "none";
  post(encode_slab(id_, frame_with(header, {0, 0})));
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(answer(), MessageType::kDone);
}

TEST_F(Protocol, ABeginThatChangesEndsTheTransfer) {
  begin_push(begin_of(100, 2));
  post(encode_begin(id_, begin_of(100, 3)));
  EXPECT_EQ(error().code(), Code::kCorrupt);
  EXPECT_THAT(sink_->failure().message(), HasSubstr("anew"));
}

TEST_F(Protocol, AnEndOfTheFutureEndsTheTransfer) {
  begin_push(begin_of(1, 1));
  post(encode_end(id_, {1, end_of(1)}));
  EXPECT_EQ(error().code(), Code::kCorrupt);
}

TEST_F(Protocol, WhatComesBeforeBeginIsDropped) {
  const TransferBegin begin = begin_of(1, 1);
  ASSERT_TRUE(endpoint_->expect(id_, Seconds(30), sink_).ok());
  connect();
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_TRUE(silent());
  post(encode_begin(id_, begin));
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(answer(), MessageType::kMissing);
}

TEST_F(Protocol, UnknownTransfersAreAnsweredOnceAMessage) {
  connect();
  post(encode_begin(id_, begin_of(1, 1)));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_fetch(id_));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_missing(id_, {}));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_slab(id_, frame_of(begin_of(1, 1), {0, 0})));
  post(encode_done(id_, {}));
  post(encode_error(id_, aborted("whatever")));
  EXPECT_TRUE(silent());
}

TEST_F(Protocol, AnotherLinkCannotTouchATransfer) {
  const TransferBegin begin = begin_of(1, 1);
  begin_push(begin);
  events_ = std::make_shared<RecordingEvents>();
  read_ = 0;
  const auto first = link_;
  connect();
  post(encode_begin(id_, begin));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_end(id_, {0, end_of(1)}));
  EXPECT_EQ(error().code(), Code::kNotFound);
  post(encode_slab(id_, frame_of(begin, {0, 0})));
  post(encode_error(id_, aborted("stop that")));
  EXPECT_TRUE(silent());
  EXPECT_EQ(sink_->slabs(), 0U);
  EXPECT_FALSE(sink_->over());
}

TEST_F(Protocol, ASenderThatFallsSilentIsGivenUp) {
  begin_push(begin_of(1, 1));
  run(1.5);
  EXPECT_FALSE(sink_->over());
  post(encode_begin(id_, begin_of(1, 1)));
  run(1.5);
  EXPECT_FALSE(sink_->over()) << "a heartbeat keeps it";
  run(1);
  EXPECT_EQ(sink_->failure().code(), Code::kTimeout);
  EXPECT_FALSE(events_->closed().has_value()) << "the link stays";
}

// It may only wait for its turn; but not without end.
TEST_F(Protocol, ASenderThatIsBusyWithOthersIsWaitedForLonger) {
  begin_push(begin_of(1, 1));
  const auto other = std::make_shared<CheckingSink>();
  ASSERT_TRUE(endpoint_->expect(id_of(2), Seconds(30), other).ok());
  const TransferBegin begin = begin_of(64, 100);
  post(encode_begin(id_of(2), begin));
  const auto others_move = [&](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t layer = from; layer < to; ++layer) {
      post(encode_slab(id_of(2), frame_of(begin, {layer, 0})));
      run(0.5);
    }
  };
  others_move(0, 16);
  endpoint_->cancel(id_of(2), *other);
  others_move(16, 22);  // what was on its way; eleven seconds in all, and the idle limit is two
  EXPECT_FALSE(sink_->over());
  others_move(22, 26);
  EXPECT_EQ(sink_->failure().code(), Code::kTimeout);
  EXPECT_THAT(sink_->failure().message(), HasSubstr("for 12 s"));
}

TEST_F(Protocol, ASenderThatIsBusyWithUnknownTransfersIsNot) {
  begin_push(begin_of(1, 1));
  const TransferBegin begin = begin_of(64, 100);
  for (std::uint32_t layer = 0; layer < 6; ++layer) {
    post(encode_slab(id_of(2), frame_of(begin, {layer, 0})));
    run(0.5);
  }
  EXPECT_EQ(sink_->failure().code(), Code::kTimeout);
}

TEST_F(Protocol, AnErrorBeforeBeginReachesTheSink) {
  ASSERT_TRUE(endpoint_->expect(id_, Seconds(30), sink_).ok());
  connect();
  post(encode_error(id_, exhausted("no memory")));
  run();
  EXPECT_EQ(sink_->failure().code(), Code::kExhausted);
}

TEST_F(Protocol, FetchIsRepeatedUntilSomethingComes) {
  listen();
  ASSERT_TRUE(endpoint_->fetch(address_, id_, sink_).ok());
  ASSERT_EQ(answer(), MessageType::kHello);
  post(encode_hello(MessageType::kHelloAck, hello_of_peer()));
  ASSERT_EQ(answer(), MessageType::kFetch);
  run(0.5);
  ASSERT_EQ(answer(), MessageType::kFetch);
  run(2);
  EXPECT_EQ(sink_->failure().code(), Code::kTimeout);
}

// The endpoint sends.

TEST_F(Protocol, SlabsAreSentAsOftenAsTheyAreAskedFor) {
  receive_push(begin_of(100, 2), /*finish=*/true);
  for (std::uint32_t round = 1; round < 4; ++round) {
    post(encode_missing(id_, {round, {{1, 1}, {0, 0}}}));
    ASSERT_EQ(answer(), MessageType::kSlab);
    ASSERT_EQ(answer(), MessageType::kSlab);
    ASSERT_EQ(answer(), MessageType::kEnd);
    EXPECT_EQ(decode_end(body())->round, round);
  }
  post(encode_missing(id_, {1, {{1, 1}}}));  // an old round
  post(encode_missing(id_, {3, {}}));        // "I am here"
  EXPECT_TRUE(silent());
  post(encode_done(id_, {{"transfer", 2}}));
  run();
  ASSERT_TRUE(delivery_.over() && delivery_.ok());
  EXPECT_EQ(delivery_.durations(), (Durations{{"transfer", 2}}));
}

TEST_F(Protocol, WhatAReceiverMayNotAskForEndsTheTransfer) {
  const std::pair<Missing, const char*> wrong[] = {
      {{2, {{0, 0}}}, "round 2"},
      {{0, {{0, 0}}}, "round 0"},
      {{1, {{2, 0}}}, "layer 2"},
      {{1, {{0, 2}}}, "block 2"},
      {{1, {{0xFFFFFFFF, 0xFFFFFFFF}}}, "layer 4294967295"},
  };
  for (const auto& [missing, sentence] : wrong) {
    delivery_ = {};
    events_ = std::make_shared<RecordingEvents>();
    read_ = 0;
    receive_push(begin_of(100, 2), /*finish=*/true);
    post(encode_missing(id_, missing));
    EXPECT_THAT(error().message(), HasSubstr(sentence));
    ASSERT_TRUE(delivery_.over());
    EXPECT_EQ(delivery_.status().code(), Code::kCorrupt);
  }
}

TEST_F(Protocol, AskingOrThankingTooEarlyEndsTheTransfer) {
  for (const bool thank : {true, false}) {
    delivery_ = {};
    events_ = std::make_shared<RecordingEvents>();
    read_ = 0;
    receive_push(begin_of(100, 2), /*finish=*/false);
    post(encode_missing(id_, {0, {}}));
    EXPECT_TRUE(silent());
    post(thank ? encode_done(id_, {}) : encode_missing(id_, {1, {{0, 0}}}));
    EXPECT_EQ(error().code(), Code::kCorrupt);
    EXPECT_EQ(delivery_.status().code(), Code::kCorrupt);
  }
}

TEST_F(Protocol, BeginAndEndAreRepeatedToASilentReceiver) {
  receive_push(begin_of(1, 1), /*finish=*/true);
  run(0.3);
  EXPECT_EQ(answer(), MessageType::kBegin);
  EXPECT_EQ(answer(), MessageType::kEnd);
  run(1);
  post(encode_hello(MessageType::kHelloAck, hello_of_peer()));  // not of this transfer
  run(1);
  ASSERT_TRUE(delivery_.over());
  EXPECT_EQ(delivery_.status().code(), Code::kTimeout);
  // What comes later gets the reason.
  last_ = events_->messages().back();
  EXPECT_EQ(error_of_last().code(), Code::kTimeout);
  read_ = events_->messages().size();
  post(encode_missing(id_, {1, {{0, 0}}}));
  EXPECT_EQ(error().code(), Code::kTimeout);
}

TEST_F(Protocol, APeerThatSaysNothingAtAllLosesTheLink) {
  receive_push(begin_of(1, 1), /*finish=*/true);
  run(2.5);
  ASSERT_TRUE(delivery_.over());
  EXPECT_EQ(delivery_.status().code(), Code::kTimeout);
  ASSERT_TRUE(events_->closed().has_value());
  last_ = events_->messages().back();
  EXPECT_EQ(error_of_last().code(), Code::kTimeout) << "it is told why, should it ever read";
}

TEST_F(Protocol, FetchAgainRepeatsBegin) {
  const TransferBegin begin = begin_of(1, 1);
  outgoing_ = *endpoint_->park(id_, begin, bytes_for(begin), delivery_.callback());
  connect();
  post(encode_fetch(id_));
  ASSERT_EQ(answer(), MessageType::kBegin);
  post(encode_fetch(id_));
  ASSERT_EQ(answer(), MessageType::kBegin);
  ASSERT_TRUE(send_all(*outgoing_, begin, 1).ok());
  ASSERT_EQ(answer(), MessageType::kSlab);
  ASSERT_EQ(answer(), MessageType::kEnd);
  post(encode_fetch(id_));
  ASSERT_EQ(answer(), MessageType::kBegin);
  ASSERT_EQ(answer(), MessageType::kEnd);
}

TEST_F(Protocol, AReceiverThatReportsAnErrorEndsTheTransfer) {
  receive_push(begin_of(1, 1), /*finish=*/false);
  post(encode_error(id_, exhausted("no blocks")));
  run();
  ASSERT_TRUE(delivery_.over());
  EXPECT_EQ(delivery_.status().code(), Code::kExhausted);
  EXPECT_EQ(add_frame(*outgoing_, frame_of(begin_of(1, 1), {0, 0})).code(), Code::kExhausted);
}

}  // namespace
}  // namespace kvlane
