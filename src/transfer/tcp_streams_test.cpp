// Links over several connections: how messages are dealt and kept in order, who may join, and that
// all connections live and die together. Strangers are plain sockets that play one side.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "transfer/test_stranger.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using testing::id_of;
using testing::RecordingEvents;
using testing::StrangeListener;
using testing::Stranger;
using testing::widen;

Bytes control(int number) {
  return encode_error(id_of(1), aborted("number " + std::to_string(number)));
}

Bytes slab(std::size_t body, int number = 0) {
  return encode_slab(id_of(1), Bytes(body, std::byte(number)));
}

bool is_slab(const Bytes& message) {
  return parse_message(message)->header.type == MessageType::kSlab;
}

TransferId id_of_key(const StreamKey& key) {
  TransferId id;
  id.bytes = key.id;
  return id;
}

// A network that listens, and who came: every connection is a link at first.
class Streams : public ::testing::Test {
 protected:
  struct Guest {
    std::shared_ptr<Link> link;
    std::shared_ptr<RecordingEvents> events = std::make_shared<RecordingEvents>();
  };

  Streams() : Streams(options_of(4)) {}
  explicit Streams(const TcpOptions& options) : network_(std::move(*make_tcp_network(options))) {
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      const std::lock_guard lock(mutex_);
      guests_.push_back({std::move(link)});
      return guests_.back().events;
    });
  }
  ~Streams() override { network_.reset(); }

  static TcpOptions options_of(std::uint32_t streams) {
    TcpOptions options;
    options.shared_memory = false;
    options.streams = streams;
    options.connect_timeout = Seconds(1);
    options.user_timeout = Seconds(2);
    return options;
  }
  Guest guest(std::size_t number) {
    const TimePoint start = SteadyClock::now();
    while (seconds_since(start) < 10) {
      {
        const std::lock_guard lock(mutex_);
        if (guests_.size() > number) return guests_[number];
      }
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no connection number " << number;
    return {};
  }
  // A link of this network to itself, over so many connections.
  void connect(int streams) {
    link_ = *network_->connect(address_, here_);
    first_ = guest(0);
    widen(*link_, *first_.link, streams);
  }
  // A link whose connector are strangers: the first, and the link's key.
  std::unique_ptr<Stranger> begin() {
    auto stranger = std::make_unique<Stranger>(address_.port);
    stranger->send(control(0));
    first_ = guest(0);
    EXPECT_TRUE(first_.events->wait_messages(1));
    key_ = id_of_key(first_.link->stream_key().value());
    return stranger;
  }
  std::unique_ptr<Stranger> join(std::uint32_t number) {
    auto stranger = std::make_unique<Stranger>(address_.port);
    stranger->send(encode_stream_join({key_, number}));
    EXPECT_EQ(stranger->receive_message(), encode_stream_join({key_, number}));
    return stranger;
  }
  // What the peer says to a connection that it then closes.
  static std::string refusal(Stranger& stranger) {
    const std::string answer = stranger.receive_all();
    const Result<Message> message = parse_message(as_byte_view(answer));
    Status reported;
    if (!message.ok() || !decode_error(message->body, &reported).ok()) return "no ERROR";
    return reported.message();
  }
  void post_when_there_is_room(const Bytes& message) {
    Status status = link_->post(share(message));
    while (status.code() == Code::kExhausted) {
      std::this_thread::yield();
      status = link_->post(share(message));
    }
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void expect_standing() {
    ASSERT_TRUE(first_.link->post(share(control(1))).ok());
    EXPECT_FALSE(first_.events->closed().has_value());
  }

  std::mutex mutex_;
  std::vector<Guest> guests_;
  std::shared_ptr<RecordingEvents> here_ = std::make_shared<RecordingEvents>();
  Guest first_;
  TransferId key_;
  std::shared_ptr<Link> link_;
  Address address_;
  std::unique_ptr<Network> network_;
};

// Messages.

TEST_F(Streams, SlabsOvertakeEachOtherAlone) {
  connect(4);
  constexpr int kRounds = 20;
  constexpr int kSlabs = 24;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(link_->post(share(control(round))).ok());
    for (int i = 0; i < kSlabs; ++i) {
      ASSERT_TRUE(link_->post(share(slab(std::size_t(1) << (i % 16), i))).ok());
    }
  }
  constexpr int kAll = kRounds * (kSlabs + 1);
  ASSERT_TRUE(first_.events->wait_messages(kAll));
  const std::vector<Bytes> messages = first_.events->messages();
  ASSERT_EQ(messages.size(), std::size_t(kAll));
  for (int round = 0; round < kRounds; ++round) {
    const auto at = messages.begin() + std::ptrdiff_t{round} * (kSlabs + 1);
    EXPECT_EQ(*at, control(round));
    std::vector<Bytes> sent;
    for (int i = 0; i < kSlabs; ++i) sent.push_back(slab(std::size_t(1) << (i % 16), i));
    EXPECT_THAT(std::vector<Bytes>(at + 1, at + 1 + kSlabs),
                ::testing::UnorderedElementsAreArray(sent));
  }
}

TEST_F(Streams, BothSidesSendOverAll) {
  connect(3);
  EXPECT_EQ(link_->streams(), 3);
  ASSERT_TRUE(link_->post(share(control(0))).ok());
  ASSERT_TRUE(first_.link->post(share(control(0))).ok());
  for (int i = 0; i < 60; ++i) {
    const Status here = link_->post(share(slab(100'000, i)));
    ASSERT_TRUE(here.ok()) << here.message();
    ASSERT_TRUE(first_.link->post(share(slab(100'000, i))).ok());
  }
  ASSERT_TRUE(link_->post(share(control(1))).ok());
  ASSERT_TRUE(first_.link->post(share(control(1))).ok());
  for (const auto& events : {here_, first_.events}) {
    ASSERT_TRUE(events->wait_messages(62));
    EXPECT_EQ(events->messages().back(), control(1));
  }
}

TEST_F(Streams, TheLongestAndTheShortestMessages) {
  connect(4);
  const Bytes longest = slab(kSlabBodyBytesMax, 7);
  ASSERT_TRUE(link_->post(share(control(0))).ok());
  ASSERT_TRUE(link_->post(share(longest)).ok());
  std::size_t posted = 1;
  for (int i = 0; i < 50; ++i) {
    // The longest one fills the queue alone.
    post_when_there_is_room(slab(1, i));
    ++posted;
  }
  post_when_there_is_room(control(9));
  ASSERT_TRUE(first_.events->wait_messages(posted + 2, 30));
  const std::vector<Bytes> messages = first_.events->messages();
  EXPECT_EQ(messages.back(), control(9));
  EXPECT_EQ(std::ranges::count_if(messages, is_slab), std::ptrdiff_t(posted));
  EXPECT_EQ(std::ranges::count(messages, longest), 1);
}

TEST_F(Streams, CloseComesBehindAllThatIsQueued) {
  connect(4);
  ASSERT_TRUE(link_->post(share(control(0))).ok());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(link_->post(share(slab(300'000, i))).ok());
  ASSERT_TRUE(link_->post(share(control(1))).ok());
  link_->close();
  EXPECT_EQ(link_->post(share(control(2))).code(), Code::kUnavailable);
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->messages().size(), 42U);
  EXPECT_EQ(first_.events->closed()->code(), Code::kAborted);
  EXPECT_FALSE(here_->closed().has_value());
  EXPECT_EQ(first_.link->post(share(control(3))).code(), Code::kUnavailable);
}

class StreamsWithASmallQueue : public Streams {
 protected:
  static TcpOptions small_queue() {
    TcpOptions options = options_of(3);
    options.queue_bytes_max = std::size_t{1} << 20;
    options.user_timeout = Seconds(10);
    return options;
  }
  StreamsWithASmallQueue() : Streams(small_queue()) {}
};

// Strangers who do not read: what is queued counts over all connections, and room is told once.
TEST_F(StreamsWithASmallQueue, IsOneForAllConnections) {
  const auto first = begin();
  const auto second = join(1);
  const auto third = join(2);
  const auto message = share(slab(std::size_t{1} << 16));
  int refusals = 0;
  do {
    Status status;
    while (status.ok()) status = first_.link->post(message);
    ASSERT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), HasSubstr("bytes queued"));
    ++refusals;
  } while (first_.events->wait_writable(refusals, 0.3));
  std::vector<std::thread> readers;
  for (Stranger* stranger : {first.get(), second.get(), third.get()}) {
    readers.emplace_back([stranger] { (void)stranger->receive_all(); });
  }
  EXPECT_TRUE(first_.events->wait_writable(refusals));
  EXPECT_TRUE(first_.link->post(message).ok());
  first_.link->close();
  for (std::thread& reader : readers) reader.join();
}

// Two readers of a known pace.
TEST_F(Streams, SpeedIsThatOfAllConnections) {
  constexpr double kSpeed = 20e6;  // far below what one core can do under a sanitizer
  constexpr std::size_t kMessages = 640;
  const auto first = begin();
  const auto second = join(1);
  std::vector<std::thread> readers;
  for (Stranger* stranger : {first.get(), second.get()}) {
    readers.emplace_back([stranger] {
      const TimePoint start = SteadyClock::now();
      std::size_t bytes = 0;
      while (const std::size_t got = stranger->receive_message().size()) {
        bytes += got;
        const double early = double(bytes) / kSpeed - seconds_since(start);
        if (early > 0) std::this_thread::sleep_for(Seconds(early));
      }
    });
  }
  const auto message = share(slab(std::size_t{1} << 16));
  for (std::size_t sent = 0; sent < kMessages;) {
    if (first_.link->post(message).ok()) {
      ++sent;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  const auto speed = first_.link->speed();
  ASSERT_TRUE(speed.has_value());
  // Buffers are large beside what is sent: the first windows are faster than the readers.
  EXPECT_GT(speed->bytes_per_second, 1.2 * kSpeed);
  first_.link->close();
  for (std::thread& reader : readers) reader.join();
}

// Fences, byte by byte.

TEST_F(Streams, FencesHoldAConnectionUntilTheOtherHasDelivered) {
  const auto first = begin();
  const auto second = join(1);
  second->send(encode_fence(key_, {2}));
  second->send(slab(10, 1));
  second->send(slab(10, 2));
  first->send(encode_fence(key_, {0, 0}));  // of what has long been delivered
  EXPECT_FALSE(first_.events->wait_messages(2, 0.1));
  first->send(control(1));
  first->send(encode_fence(key_, {0, 3}));
  first->send(control(2));
  ASSERT_TRUE(first_.events->wait_messages(4));
  EXPECT_FALSE(first_.events->wait_messages(5, 0.1));
  second->send(slab(10, 3));
  ASSERT_TRUE(first_.events->wait_messages(6));
  EXPECT_EQ(first_.events->messages(), (std::vector<Bytes>{control(0), control(1), slab(10, 1),
                                                           slab(10, 2), slab(10, 3), control(2)}));
}

TEST_F(Streams, FencesAreSentAroundWhatIsNoSlab) {
  const auto first = begin();
  const auto second = join(1);
  ASSERT_TRUE(first_.link->post(share(control(1))).ok());
  EXPECT_EQ(first->receive_message(), control(1));
  // The first takes one, the other the next while that is queued; a long one stays queued.
  ASSERT_TRUE(first_.link->post(share(slab(std::size_t{12} << 20))).ok());
  ASSERT_TRUE(first_.link->post(share(slab(10, 1))).ok());
  ASSERT_TRUE(first_.link->post(share(control(2))).ok());
  EXPECT_EQ(second->receive_message(), encode_fence(key_, {1}));
  EXPECT_EQ(second->receive_message(), slab(10, 1));
  EXPECT_EQ(first->receive_message().size(), (std::size_t{12} << 20) + kMessageHeaderBytes);
  EXPECT_EQ(first->receive_message(), encode_fence(key_, {0, 1}));
  EXPECT_EQ(first->receive_message(), control(2));
}

TEST_F(Streams, AFenceThatIsNeverMetEndsTheLink) {
  const auto first = begin();
  const auto second = join(1);
  first->send(encode_fence(key_, {0, 5}));
  first->send(control(1));
  second->end_sending();  // ...and what it waits for cannot come any more
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->messages().size(), 1U);
}

TEST_F(Streams, ALinkIsOverWhenOneOfItsConnectionsHasEnded) {
  const auto first = begin();
  const auto second = join(1);
  EXPECT_FALSE(first_.link->is_over());
  second->end_sending();
  while (!first_.link->is_over()) std::this_thread::yield();
  EXPECT_EQ(first_.link->post(share(control(1))).code(), Code::kUnavailable);
  first->send(control(2));
  EXPECT_TRUE(first_.events->wait_messages(1)) << "the others may have something to say";
  ASSERT_TRUE(first_.events->wait_closed());
}

TEST_F(Streams, AConnectionThatWaitsInVainEndsTheLink) {
  const auto first = begin();
  const auto second = join(1);
  const TimePoint start = SteadyClock::now();
  second->send(encode_fence(key_, {5}));
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_GT(seconds_since(start), 1.9);
  EXPECT_EQ(first_.events->closed()->code(), Code::kUnavailable);
  EXPECT_THAT(first_.events->closed()->message(), HasSubstr("do not come"));
  (void)first->receive_all();
}

TEST_F(Streams, FencesThatMakeNoSenseAreRefused) {
  Bytes flipped = encode_fence(id_of(1), {1});
  flipped.back() ^= std::byte{1};
  const std::pair<Bytes, const char*> wrong[] = {
      {encode_fence(id_of(3), {0}), "belongs to no connection"},
      {flipped, "checksum"},
  };
  for (const auto& [fence, sentence] : wrong) {
    Stranger stranger(address_.port);
    stranger.send(fence);
    EXPECT_THAT(refusal(stranger), HasSubstr(sentence));
  }
  for (const Fence& fence : {Fence{9}, Fence{0, 0, 9}, Fence(16, 1)}) {
    {
      const std::lock_guard lock(mutex_);
      guests_.clear();
    }
    const auto first = begin();
    const auto second = join(1);
    first->send(encode_fence(key_, fence));
    EXPECT_THAT(refusal(*first), HasSubstr("belongs to no connection"));
    ASSERT_TRUE(first_.events->wait_closed());
    EXPECT_EQ(first_.events->closed()->code(), Code::kCorrupt);
    (void)second->receive_all();
    EXPECT_TRUE(second->closed_in_order);
  }
}

// Who may join.

TEST_F(Streams, StrangersDoNotJoin) {
  const auto first = begin();
  TransferId guessed = key_;
  guessed.bytes[15] ^= 1;
  const std::pair<Bytes, const char*> wrong[] = {
      {encode_stream_join({guessed, 1}), "an id that no link here has"},
      {encode_stream_join({key_, 0}), "number 0"},
      {encode_stream_join({key_, 16}), "number 16"},
  };
  for (const auto& [message, sentence] : wrong) {
    Stranger stranger(address_.port);
    stranger.send(message);
    EXPECT_THAT(refusal(stranger), HasSubstr(sentence));
  }
  for (std::size_t i = 1; i <= std::size(wrong); ++i) {
    ASSERT_TRUE(guest(i).events->wait_closed());
    EXPECT_EQ(guest(i).events->closed()->code(), Code::kCorrupt);
  }
  EXPECT_EQ(first_.link->streams(), 1);
  expect_standing();
}

TEST_F(Streams, NumbersAreTakenOnce) {
  const auto first = begin();
  const auto second = join(15);
  Stranger again(address_.port);
  again.send(encode_stream_join({key_, 15}));
  EXPECT_THAT(refusal(again), HasSubstr("number 15"));
  EXPECT_EQ(first_.link->streams(), 2);
  expect_standing();
  // Who has joined is no link of its own any more.
  ASSERT_TRUE(guest(1).events->wait_closed());
  EXPECT_EQ(guest(1).events->closed()->code(), Code::kAborted);
  EXPECT_EQ(guest(1).link->post(share(control(1))).code(), Code::kUnavailable);
  EXPECT_FALSE(guest(1).link->stream_key().has_value());
  EXPECT_FALSE(guest(1).link->speed().has_value());
}

TEST_F(Streams, JoinsInTheMiddleAreRefused) {
  const auto first = begin();
  const auto second = join(1);
  second->send(encode_stream_join({key_, 2}));
  EXPECT_THAT(refusal(*second), HasSubstr("in the middle"));
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->closed()->code(), Code::kCorrupt);
  Stranger late(address_.port);
  late.send(encode_stream_join({key_, 3}));
  EXPECT_THAT(refusal(late), HasSubstr("an id that no link here has"));
}

TEST_F(Streams, AKeyIsTheAcceptorsAndLivesAsLongAsItsLink) {
  link_ = *network_->connect(address_, here_);
  first_ = guest(0);
  EXPECT_FALSE(link_->stream_key().has_value());
  const auto key = first_.link->stream_key();
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(first_.link->stream_key()->id, key->id);
  EXPECT_EQ(key->streams_max, 16U);
  first_.link->add_streams(*key);  // is for the connector
  EXPECT_EQ(first_.link->streams(), 1);
  first_.link->close();
  EXPECT_FALSE(first_.link->stream_key().has_value());
}

TEST_F(Streams, AsManyAsBothSidesPermit) {
  link_ = *network_->connect(address_, here_);
  StreamKey key = guest(0).link->stream_key().value();
  key.streams_max = 2;
  link_->add_streams(key);
  link_->add_streams(key);  // a second time: nothing
  while (link_->streams() < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(link_->streams(), 2);
  EXPECT_EQ(guest(0).link->streams(), 2);
  const auto many = std::move(*make_tcp_network(options_of(1000)));
  const auto wide = *many->connect(address_, std::make_shared<RecordingEvents>());
  EXPECT_EQ(wide->streams_wanted(), 16U);
  const auto none = std::move(*make_tcp_network(options_of(0)));
  EXPECT_EQ((*none->connect(address_, std::make_shared<RecordingEvents>()))->streams_wanted(), 1U);
}

TEST_F(Streams, SixteenAtMost) {
  const auto many = std::move(*make_tcp_network(options_of(1000)));
  const auto wide = *many->connect(address_, here_);
  first_ = guest(0);
  widen(*wide, *first_.link, 16);
  ASSERT_TRUE(wide->post(share(control(0))).ok());
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(wide->post(share(slab(100'000, i))).ok());
  ASSERT_TRUE(first_.events->wait_messages(65));
  EXPECT_EQ(wide->streams(), 16);
}

class StreamsOfFewConnections : public Streams {
 protected:
  static TcpOptions few() {
    TcpOptions options = options_of(4);
    options.accepted_max = 2;
    return options;
  }
  StreamsOfFewConnections() : Streams(few()) {}
};

TEST_F(StreamsOfFewConnections, TheLinkGoesOnWithThoseItGets) {
  link_ = *network_->connect(address_, here_);
  first_ = guest(0);
  widen(*link_, *first_.link, 2);
  ASSERT_TRUE(link_->post(share(control(0))).ok());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(link_->post(share(slab(100'000, i))).ok());
  ASSERT_TRUE(first_.events->wait_messages(41));
  EXPECT_EQ(link_->streams(), 2);
  EXPECT_FALSE(here_->closed().has_value());
}

// Peers that answer a JOIN wrongly, or not at all: the link has one connection.
TEST_F(Streams, JoinsThatNeverCompleteLeaveTheLinkAlone) {
  StrangeListener listener;
  link_ = *network_->connect({"127.0.0.1", listener.port()}, here_);
  Stranger first(listener.accept());
  const StreamKey key{id_of(4).bytes, 4};
  link_->add_streams(key);
  Stranger silent(listener.accept());
  Stranger wrong(listener.accept());
  Stranger foreign(listener.accept());
  // Which is which is in the JOIN.
  for (Stranger* stranger : {&silent, &wrong, &foreign}) {
    const Bytes bytes = stranger->receive_message();
    ASSERT_FALSE(bytes.empty());
    const auto join = decode_stream_join(*parse_message(bytes));
    ASSERT_TRUE(join.ok());
    EXPECT_EQ(join->link, id_of(4));
  }
  wrong.send(encode_stream_join({id_of(4), 9}));
  foreign.send(control(1));
  EXPECT_THAT(refusal(wrong), HasSubstr("another connection"));
  EXPECT_THAT(refusal(foreign), HasSubstr("did not answer a JOIN"));
  const TimePoint start = SteadyClock::now();
  EXPECT_EQ(silent.receive_all(), "");
  EXPECT_LT(seconds_since(start), 5);
  EXPECT_EQ(link_->streams(), 1);
  ASSERT_TRUE(link_->post(share(slab(10))).ok());
  EXPECT_EQ(first.receive_message(), slab(10));
  EXPECT_FALSE(here_->closed().has_value());
}

// Endings.

TEST_F(Streams, AResetOfOneEndsAll) {
  const auto first = begin();
  auto second = join(1);
  const auto third = join(2);
  second->reset_at_the_end();
  second.reset();
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->closed()->code(), Code::kUnavailable);
  EXPECT_EQ(first->receive_all(), "");
  EXPECT_EQ(third->receive_all(), "");
}

TEST_F(Streams, AMessageThatIsCutOffEndsAll) {
  const auto first = begin();
  const auto second = join(1);
  second->send(ByteView(slab(100)).first(60));
  second->end_sending();
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->closed()->code(), Code::kUnavailable);
  EXPECT_THAT(first_.events->closed()->message(), HasSubstr("inside a message"));
}

TEST_F(Streams, GarbageOnOneIsToldAndEndsAll) {
  const auto first = begin();
  const auto second = join(1);
  second->send(as_byte_view("SSH-2.0"));
  EXPECT_THAT(refusal(*second), HasSubstr("does not speak"));
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->closed()->code(), Code::kCorrupt);
  EXPECT_EQ(first->receive_all(), "");
  EXPECT_TRUE(first->closed_in_order);
}

TEST_F(Streams, WhatIsUnderWayCountsWhenOneHasEnded) {
  const auto first = begin();
  const auto second = join(1);
  second->end_sending();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  first->send(control(1));
  ASSERT_TRUE(first_.events->wait_messages(2));
  EXPECT_FALSE(first_.events->closed().has_value());
  first->end_sending();
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_EQ(first_.events->closed()->code(), Code::kAborted);
}

TEST_F(Streams, OneThatEndsAloneEndsAllSoon) {
  const auto first = begin();
  const auto second = join(1);
  const TimePoint start = SteadyClock::now();
  second->end_sending();
  ASSERT_TRUE(first_.events->wait_closed());
  EXPECT_GT(seconds_since(start), 0.9 * kStreamsEndLimit.count());
  EXPECT_EQ(first_.events->closed()->code(), Code::kAborted);
  EXPECT_EQ(first->receive_all(), "");
}

TEST_F(Streams, TheNetworksEndIsThatOfAllConnections) {
  const auto first = begin();
  const auto second = join(1);
  second->send(encode_fence(key_, {9}));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(first_.link->post(share(slab(1000, i))).ok());
  network_.reset();
  EXPECT_FALSE(first_.events->closed().has_value());
  std::size_t slabs = 0;
  for (Stranger* stranger : {first.get(), second.get()}) {
    for (Bytes bytes = stranger->receive_message(); !bytes.empty();
         bytes = stranger->receive_message()) {
      slabs += is_slab(bytes) ? 1 : 0;
    }
  }
  EXPECT_EQ(slabs, 8U);
  EXPECT_EQ(first_.events.use_count(), 2) << "the listener is let go of";
}

}  // namespace
}  // namespace kvlane
