// Endpoints over real links on loopback, with real threads, over TCP, over several connections,
// through shared memory and over UCX: the whole path, strangers at the port, deaths, and cancelling
// from other threads.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <thread>

#include "transfer/test_link.h"
#include "transfer/test_network.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

// Two workers in two networks, as two processes have them. The parameter says what carries the
// messages between them.
class EndpointTcp : public ::testing::TestWithParam<Carrier> {
 protected:
  EndpointTcp() { start(options_for_test(), options_for_test()); }
  ~EndpointTcp() override {
    sender_.reset();
    receiver_.reset();
  }
  void start(const EndpointOptions& sender, const EndpointOptions& receiver) {
    sender_.reset();
    receiver_.reset();
    sender_network_ = network_over(GetParam());
    receiver_network_ = network_over(GetParam());
    sender_ = std::move(*Endpoint::start(*sender_network_, sender));
    receiver_ = std::move(*Endpoint::start(*receiver_network_, receiver));
  }

  std::unique_ptr<Network> sender_network_;
  std::unique_ptr<Network> receiver_network_;
  std::unique_ptr<Endpoint> sender_;
  std::unique_ptr<Endpoint> receiver_;
};

INSTANTIATE_TEST_SUITE_P(Over, EndpointTcp, ::testing::ValuesIn(kCarriers), name_of_carrier);

TEST_P(EndpointTcp, PushArrives) {
  const auto sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  const TransferBegin begin = begin_of(1000, 8);
  ASSERT_TRUE(receiver_->expect(id_of(1), Seconds(5), sink).ok());
  auto outgoing =
      *sender_->push(receiver_->address(), id_of(1), begin, bytes_for(begin), delivery.callback());
  ASSERT_TRUE(send_all(*outgoing, begin, 3).ok());
  ASSERT_TRUE(delivery.wait());
  ASSERT_TRUE(delivery.ok()) << delivery.status().message();
  EXPECT_EQ(delivery.durations(), (Durations{{"decode_codec", 0.25}}));
  EXPECT_EQ(sink->end()->first.at(0).token, 3);
  EXPECT_EQ(sink->slabs(), 8U * 16U);
  const LinkPath path = GetParam().path;
  const int streams = path == LinkPath::kTcp ? static_cast<int>(GetParam().streams) : 0;
  for (Endpoint* endpoint : {sender_.get(), receiver_.get()}) {
    const TimePoint start = SteadyClock::now();
    while (endpoint->links().tcp_streams < streams && seconds_since(start) < 10) {
      std::this_thread::yield();
    }
    const LinkCounts links = endpoint->links();
    EXPECT_EQ(links.tcp_streams, streams);
    EXPECT_EQ(links.tcp, path == LinkPath::kTcp ? 1 : 0);
    EXPECT_EQ(links.shared_memory, path == LinkPath::kSharedMemory ? 1 : 0);
    EXPECT_EQ(links.ucx, path == LinkPath::kUcx ? 1 : 0);
  }
}

TEST_P(EndpointTcp, ManyTransfersAtOnce) {
  EndpointOptions options = options_for_test();
  // With a sanitizer, four threads and others beside them, a turn may come late.
  if (kSanitized) options.idle_timeout = Seconds(20);
  start(options, options);
  constexpr std::uint32_t kTransfers = 60;
  const TransferBegin begin = begin_of(130, 3);
  std::vector<std::shared_ptr<CheckingSink>> sinks(kTransfers);
  std::vector<Delivery> deliveries(kTransfers);
  for (std::uint32_t i = 0; i < kTransfers; ++i) {
    sinks[i] = std::make_shared<CheckingSink>();
    ASSERT_TRUE(receiver_->expect(id_of(i), Seconds(10), sinks[i]).ok());
  }
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t i = t; i < kTransfers; i += 4) {
        auto outgoing = *sender_->push(receiver_->address(), id_of(i), begin, bytes_for(begin),
                                       deliveries[i].callback());
        EXPECT_TRUE(send_all(*outgoing, begin, std::int32_t(i)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint32_t i = 0; i < kTransfers; ++i) {
    ASSERT_TRUE(deliveries[i].wait());
    ASSERT_TRUE(deliveries[i].ok()) << deliveries[i].status().message();
    EXPECT_EQ(sinks[i]->end()->first.at(0).token, std::int32_t(i));
  }
}

// A listener that is no worker: it answers the greeting like an HTTP server.
TEST_P(EndpointTcp, APeerThatIsNoWorkerFailsThePush) {
  auto raw =
      GetParam().path == LinkPath::kUcx ? network_over(GetParam()) : std::move(*make_tcp_network());
  const auto events = std::make_shared<RecordingEvents>();
  std::shared_ptr<Link> link;
  const Address address = *raw->listen({"127.0.0.1", 0}, [&](std::shared_ptr<Link> accepted) {
    link = std::move(accepted);
    const std::string_view text = "HTTP/1.1 400 Bad Request\r\n\r\n";
    const ByteView bytes = as_byte_view(text);
    EXPECT_TRUE(link->post(share(Bytes(bytes.begin(), bytes.end()))).ok());
    return events;
  });
  Delivery delivery;
  auto outgoing = *sender_->push(address, id_of(1), begin_of(1, 1), bytes_for(begin_of(1, 1)),
                                 delivery.callback());
  ASSERT_TRUE(delivery.wait());
  EXPECT_EQ(delivery.status().code(), Code::kCorrupt);
  EXPECT_THAT(delivery.status().message(), HasSubstr("does not speak the transfer protocol"));
  raw.reset();
}

TEST_P(EndpointTcp, GarbageAtThePortDisturbsNobody) {
  std::mutex mutex;
  std::vector<Status> refused;
  EndpointOptions options = options_for_test();
  options.on_refused = [&](const std::string& peer, const Status& why) {
    const std::lock_guard lock(mutex);
    EXPECT_THAT(peer, HasSubstr("127.0.0.1"));
    refused.push_back(why);
  };
  start(options_for_test(), options);
  const auto sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  const TransferBegin begin = begin_of(100, 2);
  ASSERT_TRUE(receiver_->expect(id_of(1), Seconds(10), sink).ok());
  auto outgoing =
      *sender_->push(receiver_->address(), id_of(1), begin, bytes_for(begin), delivery.callback());

  auto raw =
      GetParam().path == LinkPath::kUcx ? network_over(GetParam()) : std::move(*make_tcp_network());
  for (const std::string_view text : {"GET / HTTP/1.1\r\n\r\n", "\r\n", "SSH-2.0-OpenSSH\r\n"}) {
    const auto events = std::make_shared<RecordingEvents>();
    const auto link = *raw->connect(receiver_->address(), events);
    const ByteView bytes = as_byte_view(text);
    ASSERT_TRUE(link->post(share(Bytes(bytes.begin(), bytes.end()))).ok());
    ASSERT_TRUE(events->wait_closed());
  }
  ASSERT_TRUE(send_all(*outgoing, begin, 3).ok());
  ASSERT_TRUE(delivery.wait());
  EXPECT_TRUE(delivery.ok()) << delivery.status().message();
  const std::lock_guard lock(mutex);
  ASSERT_EQ(refused.size(), 3U);
  EXPECT_THAT(refused[0].message(),
              HasSubstr(GetParam().path == LinkPath::kUcx ? "does not speak" : "HTTP"));
}

// From a thread of its own, at a random time: when cancel() has returned, the sink is untouched.
TEST_P(EndpointTcp, CancelAtRandomTimesKeepsItsPromise) {
  const TransferBegin begin = begin_of(64 * 8, 4);
  for (std::uint32_t i = 0; i < 150; ++i) {
    const auto sink = std::make_shared<CheckingSink>();
    Delivery delivery;
    ASSERT_TRUE(receiver_->expect(id_of(i), Seconds(0.5), sink).ok());
    auto outgoing = *sender_->push(receiver_->address(), id_of(i), begin, bytes_for(begin),
                                   delivery.callback());
    std::thread sending([&] { (void)send_all(*outgoing, begin, 1); });
    const std::uint32_t pause = philox4x32(11, {i, 0, 0, 0})[0] % 1500;
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
    if (i % 3 == 0) {
      outgoing->fail(aborted("on purpose"));
    } else {
      receiver_->cancel(id_of(i), *sink);
      EXPECT_EQ(sink.use_count(), 1);
      sink->hook = [](const char* call) {
        ADD_FAILURE() << call << " after cancel()";
        return Status();
      };
    }
    sending.join();
    ASSERT_TRUE(delivery.wait());
    if (i % 3 == 0) {
      ASSERT_TRUE(sink->wait());
    }
  }
}

// From a thread of its own, at a random time: no slab before grant(), all of them after it.
TEST_P(EndpointTcp, GrantsAtRandomTimesLetAllThrough) {
  const TransferBegin begin = begin_of(64 * 8, 4);
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto sink = std::make_shared<CheckingSink>();
    std::atomic<bool> granted = false;
    sink->hook = [&](const char* call) {
      EXPECT_TRUE(granted || call == std::string("begin")) << call;
      return Status();
    };
    Delivery delivery;
    ASSERT_TRUE(receiver_->expect_waiting(id_of(i), Seconds(10), sink).ok());
    auto outgoing = *sender_->push(receiver_->address(), id_of(i), begin, bytes_for(begin),
                                   delivery.callback());
    std::thread sending([&] { EXPECT_TRUE(send_all(*outgoing, begin, 1).ok()); });
    const std::uint32_t pause = philox4x32(13, {i, 0, 0, 0})[0] % 3000;
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
    granted = true;
    EXPECT_TRUE(receiver_->grant(id_of(i), *sink).ok());
    sending.join();
    ASSERT_TRUE(delivery.wait());
    EXPECT_TRUE(delivery.ok()) << delivery.status().message();
    EXPECT_EQ(sink->slabs(), 32U);
  }
  EXPECT_EQ(sender_->outgoing_bytes_free(), EndpointOptions().outgoing_bytes_max);
}

// What a worker hears last may be why it tries again, before that call has returned.
TEST_P(EndpointTcp, AnIdIsFreeWhenItsLastCallIsMade) {
  struct LingeringSink : TransferSink {
    explicit LingeringSink(std::binary_semaphore& told) : over(told) {}
    ~LingeringSink() override { std::this_thread::sleep_for(Seconds(0.01)); }
    Status on_begin(const TransferBegin&) override { return {}; }
    Status on_slab(const Frame&) override { return {}; }
    Durations on_end(const TransferEnd&) override {
      linger();
      return {};
    }
    void on_failed(const Status&) override { linger(); }
    void linger() const {
      over.release();
      std::this_thread::sleep_for(Seconds(0.02));
    }
    std::binary_semaphore& over;
  };
  std::binary_semaphore received(0);
  std::binary_semaphore sent(0);
  const TransferBegin begin = begin_of(70, 1);
  // In turn: transfers that arrive, fetches of what nobody has, pushes that nobody expects.
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    const bool arrives = round % 3 == 0;
    const bool pushed = round % 3 != 1;
    const auto sink = [&] { return std::make_shared<LingeringSink>(received); };
    if (arrives) {
      ASSERT_TRUE(receiver_->expect(id_of(1), Seconds(5), sink()).ok());
    } else if (!pushed) {
      const Status status = receiver_->fetch(sender_->address(), id_of(1), sink());
      ASSERT_TRUE(status.ok()) << status.message();
    }
    if (pushed) {
      auto outgoing = sender_->push(receiver_->address(), id_of(1), begin, bytes_for(begin),
                                    [&](const Result<Durations>& delivered) {
                                      EXPECT_EQ(delivered.ok(), arrives);
                                      sent.release();
                                      std::this_thread::sleep_for(Seconds(0.02));
                                    });
      ASSERT_TRUE(outgoing.ok()) << outgoing.status().message();
      if (arrives) {
        ASSERT_TRUE(send_all(**outgoing, begin, 3).ok());
        ASSERT_TRUE(received.try_acquire_for(Seconds(10)));
        // While on_end has not returned.
        const auto next = sink();
        const Status status = receiver_->expect(id_of(1), Seconds(5), next);
        ASSERT_TRUE(status.ok()) << status.message();
        receiver_->cancel(id_of(1), *next);
      }
      ASSERT_TRUE(sent.try_acquire_for(Seconds(10)));
    } else {
      ASSERT_TRUE(received.try_acquire_for(Seconds(10)));
    }
  }
  sender_.reset();  // they wait for their last calls, which know what is above
  receiver_.reset();
}

TEST_P(EndpointTcp, DestructorsAtRandomTimes) {
  const TransferBegin begin = begin_of(64 * 8, 4);
  for (std::uint32_t i = 0; i < 30; ++i) {
    start(options_for_test(), options_for_test());
    const auto sink = std::make_shared<CheckingSink>();
    Delivery delivery;
    // A sender may be gone before its BEGIN has come; then this wait ends the transfer.
    ASSERT_TRUE(receiver_->expect(id_of(i), Seconds(0.3), sink).ok());
    auto outgoing = *sender_->push(receiver_->address(), id_of(i), begin, bytes_for(begin),
                                   delivery.callback());
    std::thread sending([&] { (void)send_all(*outgoing, begin, 1); });
    const std::uint32_t pause = philox4x32(12, {i, 0, 0, 0})[0] % 2000;
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
    (i % 2 == 0 ? sender_ : receiver_).reset();
    sending.join();
    EXPECT_TRUE((i % 2 == 0) ? delivery.over() : sink->over()) << "the last call of this side";
    ASSERT_TRUE(delivery.wait() && sink->wait());
  }
}

// The test double with its own thread, as tests of engines use it.
TEST(EndpointOnAThread, PushArrives) {
  TestFaults faults;
  faults.loss = 0.05;
  faults.reorder = 0.2;
  auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread, .faults = faults});
  EndpointOptions options = options_for_test();
  options.idle_timeout = Seconds(0.5);
  auto sender = std::move(*Endpoint::start(*network, options));
  auto receiver = std::move(*Endpoint::start(*network, options));
  const auto sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  const TransferBegin begin = begin_of(500, 4);
  ASSERT_TRUE(receiver->expect(id_of(1), Seconds(5), sink).ok());
  auto outgoing =
      *sender->push(receiver->address(), id_of(1), begin, bytes_for(begin), delivery.callback());
  ASSERT_TRUE(send_all(*outgoing, begin, 3).ok());
  ASSERT_TRUE(delivery.wait());
  EXPECT_TRUE(delivery.ok()) << delivery.status().message();
  sender.reset();
  receiver.reset();
}

// Frames of 1 MiB from one endpoint to another, checksums and all; the figure goes into the test's
// log.
TEST_P(EndpointTcp, Throughput) {
  struct Sink : TransferSink {
    Status on_begin(const TransferBegin&) override { return {}; }
    Status on_slab(const Frame& frame) override {
      bytes += frame.header.body_bytes();
      return {};
    }
    Durations on_end(const TransferEnd&) override { return {}; }
    void on_failed(const Status& why) override { ADD_FAILURE() << why.message(); }
    std::size_t bytes = 0;
  };
  const auto sink = std::make_shared<Sink>();
  Delivery delivery;
  constexpr std::uint32_t kSlabs = kSanitized ? 64 : 512;
  const TransferBegin begin = begin_of(64 * 32, kSlabs / 32);
  FrameHeader header = frame_header_of(begin, {0, 0});
  header.head_dim = 64;
  header.kv_heads = 64;
  const Bytes plane(std::size_t{64} * 64 * 64 * 2, std::byte{0x3C});
  std::vector<Bytes> frames;
  for (std::uint32_t i = 0; i < kSlabs; ++i) {
    header.layer = static_cast<int>(i / 32);
    header.position = std::int64_t{i % 32} * 64;
    frames.push_back(*build_frame(header, plane, plane));
  }
  ASSERT_TRUE(receiver_->expect(id_of(1), Seconds(5), sink).ok());
  auto outgoing =
      *sender_->push(receiver_->address(), id_of(1), begin,
                     outgoing_bytes_needed(begin, frames[0].size()), delivery.callback());
  const TimePoint start = SteadyClock::now();
  for (const Bytes& frame : frames) ASSERT_TRUE(add_frame(*outgoing, frame).ok());
  outgoing->finish(end_of(1));
  ASSERT_TRUE(delivery.wait(60));
  const double seconds = seconds_since(start);
  ASSERT_TRUE(delivery.ok()) << delivery.status().message();
  EXPECT_EQ(sink->bytes, std::size_t{kSlabs} << 20);
  RecordProperty("gigabytes_per_second", std::to_string(double(sink->bytes) / seconds * 1e-9));
}

}  // namespace
}  // namespace kvlane
