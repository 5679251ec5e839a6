// The TCP network on loopback: messages, limits, strangers, and endings, over TCP, over several
// connections and through shared memory.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "transfer/test_network.h"
#include "transfer/test_stranger.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using testing::Carrier;
using ::testing::HasSubstr;
using testing::id_of;
using testing::RecordingEvents;
using ::testing::StartsWith;
using testing::Stranger;
using testing::widen;

// A network that listens, and the recorder of the last link it accepted. The parameter says what
// carries the messages of links to itself.
class Tcp : public ::testing::TestWithParam<Carrier> {
 protected:
  explicit Tcp(const TcpOptions& options = {}) : network_(start(options)) {
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(link));
      return joining_ ? std::make_shared<RecordingEvents>() : there_;
    });
  }
  ~Tcp() override { network_.reset(); }

  static std::unique_ptr<Network> start(const TcpOptions& options = {}) {
    return testing::network_over(GetParam(), options);
  }
  void connect(Network* from = nullptr) {
    link_ = *(from ? from : network_.get())->connect(address_, here_);
    if (GetParam().streams == 1) return;
    while (!accepted()) std::this_thread::yield();
    const auto first = accepted();
    joining_ = true;
    widen(*link_, *first, static_cast<int>(GetParam().streams));
    joining_ = false;
    const std::lock_guard lock(mutex_);
    accepted_ = {first};
  }
  // Who listens to the links accepted from now on.
  void listen_anew() {
    const std::lock_guard lock(mutex_);
    there_ = std::make_shared<RecordingEvents>();
  }
  std::shared_ptr<Link> accepted() {
    const std::lock_guard lock(mutex_);
    return accepted_.empty() ? nullptr : accepted_.back();
  }
  // A valid small message, and a large one of which only the sizes matter.
  static Bytes small(int number) {
    return encode_error(id_of(1), aborted("number " + std::to_string(number)));
  }
  static Bytes large(std::size_t body) {
    return encode_slab(id_of(1), Bytes(body, std::byte{0x77}));
  }

  std::shared_ptr<RecordingEvents> here_ = std::make_shared<RecordingEvents>();
  std::shared_ptr<RecordingEvents> there_ = std::make_shared<RecordingEvents>();
  std::mutex mutex_;
  std::vector<std::shared_ptr<Link>> accepted_;
  std::atomic<bool> joining_ = false;
  std::shared_ptr<Link> link_;
  Address address_;
  std::unique_ptr<Network> network_;
};

INSTANTIATE_TEST_SUITE_P(Over, Tcp, ::testing::ValuesIn(testing::kCarriers),
                         testing::name_of_carrier);

// What a plain socket may do to a port that speaks TCP. UCX's is not for everybody, and
// ucx_test.cpp has its own.
class TcpStrangers : public Tcp {
 protected:
  using Tcp::Tcp;
};

#ifdef KVLANE_TEST_UCX
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TcpStrangers);
#else
INSTANTIATE_TEST_SUITE_P(Over, TcpStrangers, ::testing::ValuesIn(testing::kCarriers),
                         testing::name_of_carrier);
#endif

TEST_P(Tcp, MessagesArriveWholeAndInOrderBothWays) {
  connect();
  std::vector<Bytes> sent;
  for (int i = 0; i < 300; ++i) {
    sent.push_back(i % 10 == 9 ? large(std::size_t(i) * 1000) : small(i));
    ASSERT_TRUE(link_->post(share(sent.back())).ok());
  }
  ASSERT_TRUE(there_->wait_messages(sent.size()));
  EXPECT_TRUE(there_->messages() == sent);
  ASSERT_TRUE(accepted()->post(share(small(7))).ok());
  ASSERT_TRUE(here_->wait_messages(1));
  EXPECT_EQ(here_->messages()[0], small(7));
  EXPECT_EQ(link_->peer(), to_string(address_));
  EXPECT_THAT(accepted()->peer(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(link_->path(), GetParam().path);
  EXPECT_EQ(accepted()->path(), GetParam().path);
}

TEST_P(Tcp, ManyThreadsMayPost) {
  connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(link_->post(share(small(i))).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(there_->wait_messages(800));
}

TEST_P(Tcp, OrderlyCloseComesAfterTheLastMessage) {
  connect();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(link_->post(share(small(i))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  ASSERT_TRUE(link_->post(share(large(3'000'000))).ok());
  link_->close();
  EXPECT_EQ(link_->post(share(small(0))).code(), Code::kUnavailable);
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_EQ(there_->messages().size(), 51U);
  EXPECT_EQ(there_->closed()->code(), Code::kAborted);
  EXPECT_FALSE(here_->closed().has_value());
  EXPECT_EQ(accepted()->post(share(small(0))).code(), Code::kUnavailable);
}

TEST_P(Tcp, DroppingTheLinkClosesIt) {
  connect();
  ASSERT_TRUE(link_->post(share(small(1))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  link_.reset();
  EXPECT_TRUE(there_->wait_closed());
}

TEST_P(Tcp, NobodyThere) {
  const std::uint16_t free_port = [&] {
    auto other = std::move(*make_tcp_network());
    return other->listen({"127.0.0.1", 0}, {})->port;
  }();
  const auto link = *network_->connect({"127.0.0.1", free_port}, here_);
  (void)link->post(share(small(1)));  // fine as long as the refusal is not known
  ASSERT_TRUE(here_->wait_closed());
  EXPECT_EQ(here_->closed()->code(), Code::kUnavailable);
  EXPECT_THAT(here_->closed()->message(), HasSubstr(std::to_string(free_port)));
  EXPECT_EQ(link->post(share(small(1))).code(), Code::kUnavailable);
}

TEST_P(Tcp, NamesAreLookedUp) {
  link_ = *network_->connect({"localhost", address_.port}, here_);
  ASSERT_TRUE(link_->post(share(small(1))).ok());
  EXPECT_TRUE(there_->wait_messages(1));
  const auto unknown = std::make_shared<RecordingEvents>();
  const auto link = *network_->connect({"no such host", 1}, unknown);
  ASSERT_TRUE(unknown->wait_closed());
  EXPECT_EQ(unknown->closed()->code(), Code::kUnavailable);
  EXPECT_THAT(unknown->closed()->message(), HasSubstr("no such host:1"));
}

TEST_P(Tcp, ListeningFailsWithASentence) {
  const Result<Address> taken = network_->listen(address_, {});
  EXPECT_EQ(taken.status().code(), Code::kUnavailable);
  EXPECT_THAT(taken.status().message(), HasSubstr(to_string(address_)));
  EXPECT_EQ(network_->listen({"no such host", 0}, {}).status().code(), Code::kNotFound);
  EXPECT_EQ(network_->listen({"192.0.2.1", 0}, {}).status().code(), Code::kUnavailable);
}

TEST_P(TcpStrangers, HttpClientsAreToldAtOnce) {
  Stranger client(address_.port);
  client.send(as_byte_view("GET / HTTP/1.1\r\n"));  // less than a header, and no end
  const std::string answer = client.receive_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, HasSubstr("kvlane transfer protocol, not HTTP"));
  EXPECT_TRUE(client.closed_in_order);
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_EQ(there_->closed()->code(), Code::kCorrupt);
  EXPECT_THAT(there_->closed()->message(), HasSubstr("sent an HTTP request"));
  EXPECT_TRUE(there_->messages().empty());
}

TEST_P(TcpStrangers, GarbageIsToldAtOnce) {
  Stranger client(address_.port);
  client.send(as_byte_view("\x16\x03\x01"));  // TLS
  const std::string answer = client.receive_all();
  const Result<Message> message = parse_message(as_byte_view(answer));
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->header.type, MessageType::kError);
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_EQ(there_->closed()->code(), Code::kCorrupt);
}

// A header with a right checksum and something wrong in it.
Bytes header_with(std::size_t offset, std::uint32_t value, MessageType type) {
  Bytes message = type == MessageType::kSlab ? encode_slab(id_of(1), {}) : encode_fetch(id_of(1));
  std::memcpy(message.data() + offset, &value, sizeof value);
  const std::uint64_t sum = XXH3_64bits(message.data(), 40);
  std::memcpy(message.data() + 40, &sum, sizeof sum);
  return message;
}

TEST_P(TcpStrangers, BadHeadersAreRefusedBeforeTheirBody) {
  struct Case {
    Bytes header;
    Code code;
    const char* sentence;
  };
  Bytes flipped = encode_fetch(id_of(1));
  flipped[20] ^= std::byte{1};
  const Case cases[] = {
      {header_with(8, kSlabBodyBytesMax + 1, MessageType::kSlab), Code::kCorrupt, "at most"},
      {header_with(8, 0xFFFFFFFF, MessageType::kSlab), Code::kCorrupt, "4294967295 bytes"},
      {header_with(8, 1, MessageType::kFetch), Code::kCorrupt, "a FETCH of 1 bytes"},
      {header_with(8, kSlabBodyBytesMax, MessageType::kSlab), Code::kCorrupt, "the first message"},
      {header_with(4, 2, MessageType::kFetch), Code::kUnsupported, "version 2"},
      {flipped, Code::kCorrupt, "checksum"},
  };
  for (const Case& wrong : cases) {
    listen_anew();
    Stranger client(address_.port);
    client.send(wrong.header);
    const std::string answer = client.receive_all();
    EXPECT_TRUE(client.closed_in_order);
    const Result<Message> message = parse_message(as_byte_view(answer));
    ASSERT_TRUE(message.ok()) << wrong.sentence;
    Status reported;
    ASSERT_TRUE(decode_error(message->body, &reported).ok());
    EXPECT_EQ(reported.code(), wrong.code);
    EXPECT_THAT(reported.message(), HasSubstr(wrong.sentence));
    ASSERT_TRUE(there_->wait_closed());
    EXPECT_EQ(there_->closed()->code(), wrong.code);
  }
}

TEST_P(TcpStrangers, EveryCutMessageIsAnError) {
  const Bytes message = small(1);
  for (std::size_t size = 0; size < message.size(); ++size) {
    listen_anew();
    {
      Stranger client(address_.port);
      client.send(message);
      client.send(ByteView(message).first(size));
      client.end_sending();
      ASSERT_TRUE(there_->wait_closed());
    }
    EXPECT_EQ(there_->messages().size(), 1U);
    EXPECT_EQ(there_->closed()->code(), size == 0 ? Code::kAborted : Code::kUnavailable) << size;
  }
}

TEST_P(TcpStrangers, MessagesMayComeByteByByte) {
  const Bytes message = small(1);
  Stranger client(address_.port);
  for (const std::byte& byte : message) client.send({&byte, 1});
  ASSERT_TRUE(there_->wait_messages(1));
  EXPECT_EQ(there_->messages()[0], message);
}

TEST_P(TcpStrangers, AResetIsAnError) {
  {
    Stranger client(address_.port);
    client.send(small(1));
    ASSERT_TRUE(there_->wait_messages(1));
    ASSERT_TRUE(accepted()->post(share(small(2))).ok());
    // Closed with our answer unread.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_TRUE(there_->wait_closed());
}

TEST_P(Tcp, TimersComeInOrder) {
  std::mutex mutex;
  std::vector<int> order;
  const auto note = [&](int number) {
    const std::lock_guard lock(mutex);
    order.push_back(number);
  };
  network_->call_after(Seconds(0.03), [&] { note(2); });
  network_->call_after(Seconds(0.01), [&] { note(0); });
  network_->call_after(Seconds(0.02), [&] { note(1); });
  network_->call_after(Seconds(1000), [&] { note(9); });
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return order.size();
  };
  while (count() < 3) std::this_thread::yield();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_P(Tcp, TheDestructorSendsWhatIsQueuedAndThenNothingIsCalled) {
  auto second = start();
  connect(second.get());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(link_->post(share(small(i))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  second.reset();
  EXPECT_TRUE(there_->wait_messages(100));
  EXPECT_TRUE(there_->wait_closed());
  EXPECT_FALSE(here_->closed().has_value());
  EXPECT_EQ(here_.use_count(), 1) << "the listener is let go of";
  EXPECT_EQ(link_->post(share(small(0))).code(), Code::kUnavailable);
  link_->close();
}

// Both links end in one turn of the loop: the one is closed by its user when the other one's end
// has been told, but not yet its own.
TEST_P(Tcp, ALinkThatIsClosedWhileItEndsKeepsNobodyWaiting) {
  struct ClosesAnother : LinkEvents {
    void on_message(ByteView) override {}
    void on_writable() override {}
    void on_closed(Status) override {
      if (!std::exchange(*told, true)) other->close();
    }
    std::shared_ptr<bool> told;
    std::shared_ptr<Link> other;
  };
  auto second = start();
  const auto told = std::make_shared<bool>(false);
  const std::array ends = {std::make_shared<ClosesAnother>(), std::make_shared<ClosesAnother>()};
  std::array<std::shared_ptr<Link>, 2> links;
  for (int i : {0, 1}) links[i] = *second->connect(address_, ends[i]);
  for (int i : {0, 1}) {
    ends[i]->told = told;
    ends[i]->other = links[1 - i];
    ASSERT_TRUE(links[i]->post(share(small(i))).ok());
  }
  ASSERT_TRUE(there_->wait_messages(2));
  std::promise<void> ended;
  std::promise<void> begun;
  second->call_after(Seconds(0), [&] {
    begun.set_value();
    ended.get_future().wait();
  });
  begun.get_future().wait();
  network_.reset();
  ended.set_value();
  while (!links[0]->is_over() || !links[1]->is_over()) std::this_thread::yield();
  const TimePoint over = SteadyClock::now();
  second.reset();
  EXPECT_LT(seconds_since(over), 0.5);
  for (const auto& end : ends) end->other.reset();
}

class TcpWithLimits : public TcpStrangers {
 protected:
  TcpWithLimits() : TcpStrangers({.queue_bytes_max = 1 << 20, .accepted_max = 2}) {}
};

#ifdef KVLANE_TEST_UCX
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TcpWithLimits);
#else
INSTANTIATE_TEST_SUITE_P(Over, TcpWithLimits, ::testing::ValuesIn(testing::kCarriers),
                         testing::name_of_carrier);
#endif

TEST_P(TcpWithLimits, TheQueueHasALimitAndTellsWhenThereIsRoom) {
  Stranger silent(address_.port);
  silent.send(small(1));
  ASSERT_TRUE(there_->wait_messages(1));
  const auto link = accepted();
  // The peer does not read: when the system's own buffers are full as well, refusals last.
  const auto message = share(large(1 << 18));
  int refusals = 0;
  do {
    Status status;
    while (status.ok()) status = link->post(message);
    ASSERT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), HasSubstr("bytes queued"));
    ++refusals;
  } while (there_->wait_writable(refusals, 0.3));
  EXPECT_EQ(there_->writable(), refusals - 1);
  std::thread reader([&] { (void)silent.receive_all(); });
  EXPECT_TRUE(there_->wait_writable(refusals));
  EXPECT_TRUE(link->post(message).ok());
  link->close();
  reader.join();
}

TEST_P(TcpWithLimits, TooManyLinksAreClosedAtOnce) {
  Stranger first(address_.port);
  first.send(small(1));
  ASSERT_TRUE(there_->wait_messages(1));
  listen_anew();
  Stranger second(address_.port);
  second.send(small(1));
  ASSERT_TRUE(there_->wait_messages(1));
  Stranger third(address_.port);
  EXPECT_EQ(third.receive_all(), "");
  EXPECT_EQ(accepted_.size(), 2U);
}

// Fed by a thread of its own, as an engine would; the figure goes into the test's log.
TEST_P(Tcp, ThroughputOverLoopback) {
  struct Counter : LinkEvents {
    void on_message(ByteView message) override { bytes += message.size(); }
    void on_closed(Status) override { closed = true; }
    std::atomic<std::size_t> bytes = 0;
    std::atomic<bool> closed = false;
  };
  const auto counter = std::make_shared<Counter>();
  auto receiver = start();
  const Address address =
      *receiver->listen({"127.0.0.1", 0}, [&](const std::shared_ptr<Link>& link) {
        const std::lock_guard lock(mutex_);
        accepted_.push_back(link);
        return counter;
      });
  link_ = *network_->connect(address, here_);
  ASSERT_TRUE(link_->post(share(small(1))).ok());
  while (counter->bytes == 0) std::this_thread::yield();
  constexpr std::size_t kMessages = kSanitized ? 64 : 1024;
  const auto message = share(large((1 << 20) - kMessageHeaderBytes));
  const TimePoint start = SteadyClock::now();
  for (std::size_t sent = 0; sent < kMessages;) {
    if (link_->post(message).ok()) {
      ++sent;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  const std::size_t total = kMessages << 20;
  while (counter->bytes < total && !counter->closed) std::this_thread::yield();
  const double seconds = seconds_since(start);
  RecordProperty("gigabytes_per_second", std::to_string(double(total) / seconds * 1e-9));
  EXPECT_FALSE(counter->closed);
  receiver.reset();
}

}  // namespace
}  // namespace kvlane
