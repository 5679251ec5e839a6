// An endpoint under test and a peer that is played by hand, for tests of the protocol's rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "transfer/message_body.h"
#include "transfer/test_link.h"
#include "transfer/test_support.h"

namespace kvlane::testing {

inline Hello hello_of_peer() {
  return {"hand-made", {"127.0.0.1", 1}, model_named('m'), "bf16", {"none"}};
}

inline Bytes seal_text(MessageType type, const TransferId& id, std::string_view text) {
  return seal_message(type, id, as_byte_view(text));
}

// The endpoint under test and a link that this test holds the other end of.
class Protocol : public ::testing::Test {
 protected:
  Protocol() {
    EndpointOptions options = options_for_test();
    options.on_refused = [this](const std::string&, const Status& why) { refused_ = why; };
    endpoint_ = std::move(*Endpoint::start(*network_, options));
  }

  // This side is the connector.
  void connect(bool greet = true) {
    link_ = *network_->connect(endpoint_->address(), events_);
    if (!greet) return;
    post(encode_hello(MessageType::kHello, hello_of_peer()));
    EXPECT_EQ(answer(), MessageType::kHelloAck);
  }
  // This side is the acceptor; `address_` is where the endpoint can connect to.
  void listen() {
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      link_ = std::move(link);
      return events_;
    });
  }
  void post(Bytes message) { ASSERT_TRUE(link_->post(share(std::move(message))).ok()); }
  void run(double seconds = 0.01) { network_->run_for(Seconds(seconds)); }

  // The type of the next message that has come; ERROR without one.
  MessageType answer() {
    run();
    const auto messages = events_->messages();
    if (read_ >= messages.size()) {
      ADD_FAILURE() << "no message came";
      return MessageType::kError;
    }
    last_ = messages[read_++];
    return parse_message(last_)->header.type;
  }
  bool silent() {
    run();
    return events_->messages().size() == read_;
  }
  ByteView body() const { return ByteView(last_).subspan(kMessageHeaderBytes); }
  // The error that came next.
  Status error() {
    EXPECT_EQ(answer(), MessageType::kError);
    return error_of_last();
  }
  Status error_of_last() const {
    Status reported;
    EXPECT_TRUE(decode_error(body(), &reported).ok());
    return reported;
  }
  // The link was closed, with this in the last message.
  void expect_refused(const std::string& sentence) {
    run();
    const auto messages = events_->messages();
    ASSERT_FALSE(messages.empty());
    last_ = messages.back();
    EXPECT_THAT(error_of_last().message(), ::testing::HasSubstr(sentence));
    ASSERT_TRUE(events_->closed().has_value());
    EXPECT_THAT(refused_.message(), ::testing::HasSubstr(sentence));
  }

  // A push of this side that has begun.
  void begin_push(const TransferBegin& begin) {
    ASSERT_TRUE(endpoint_->expect(id_, Seconds(30), sink_).ok());
    connect();
    post(encode_begin(id_, begin));
    ASSERT_TRUE(silent());
  }
  // A push of the endpoint; BEGIN and all slabs have come, END if it was finished.
  void receive_push(const TransferBegin& begin, bool finish) {
    listen();
    outgoing_ = *endpoint_->push(address_, id_, begin, bytes_for(begin), delivery_.callback());
    ASSERT_EQ(answer(), MessageType::kHello);
    post(encode_hello(MessageType::kHelloAck, hello_of_peer()));
    ASSERT_EQ(answer(), MessageType::kBegin);
    if (!finish) return;
    ASSERT_TRUE(send_all(*outgoing_, begin, 1).ok());
    for (int i = 0; i < begin.layers * blocks_for(begin.tokens); ++i) {
      ASSERT_EQ(answer(), MessageType::kSlab);
    }
    ASSERT_EQ(answer(), MessageType::kEnd);
  }

  const TransferId id_ = id_of(1);
  std::unique_ptr<TestNetwork> network_ = TestNetwork::create({});
  std::shared_ptr<RecordingEvents> events_ = std::make_shared<RecordingEvents>();
  std::shared_ptr<CheckingSink> sink_ = std::make_shared<CheckingSink>();
  Delivery delivery_;
  Status refused_;
  Address address_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<OutgoingTransfer> outgoing_;
  std::unique_ptr<Endpoint> endpoint_;
  Bytes last_;
  std::size_t read_ = 0;
};

}  // namespace kvlane::testing
