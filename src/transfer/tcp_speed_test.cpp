// What a TCP link learns about its speed from a peer that reads at a known one.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "transfer/tcp.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using testing::id_of;
using testing::RecordingEvents;

// A plain socket that reads one connection at `bytes_per_second`, in steps of a millisecond.
class SlowReader {
 public:
  explicit SlowReader(double bytes_per_second)
      : listener_(::socket(AF_INET, SOCK_STREAM, 0)), bytes_per_second_(bytes_per_second) {
    // Small, so that soon what is read sets the pace and not what fits.
    const int buffer = 128 << 10;
    (void)::setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    const bool listens =
        ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        ::listen(listener_, 1) == 0 &&
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
    EXPECT_TRUE(listens);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    thread_ = std::thread([this] { run(); });
  }
  ~SlowReader() {
    thread_.join();
    ::close(listener_);
  }
  SlowReader(const SlowReader&) = delete;
  SlowReader& operator=(const SlowReader&) = delete;

  const Address& address() const { return address_; }
  std::size_t bytes() const { return read_; }

 private:
  void run() {
    const int socket = ::accept(listener_, nullptr, nullptr);
    std::vector<char> buffer(std::size_t{1} << 20);
    const TimePoint start = SteadyClock::now();
    for (bool open = socket >= 0; open;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto due = static_cast<std::size_t>(seconds_since(start) * bytes_per_second_);
      while (open && read_ < due) {
        const ssize_t got = ::recv(socket, buffer.data(), std::min(buffer.size(), due - read_), 0);
        open = got > 0;
        if (open) read_ += static_cast<std::size_t>(got);
      }
    }
    ::close(socket);
  }

  const int listener_;
  const double bytes_per_second_;
  Address address_;
  std::atomic<std::size_t> read_ = 0;
  std::thread thread_;
};

std::shared_ptr<const Bytes> message_of(std::size_t bytes) {
  return share(encode_slab(id_of(1), Bytes(bytes, std::byte{0x77})));
}

TEST(TcpSpeed, IsThatOfAReaderWhoIsTheBottleneck) {
  constexpr double kSpeed = 80e6;
  constexpr std::size_t kMessages = 40;
  SlowReader reader(kSpeed);
  const auto network = std::move(*make_tcp_network());
  const auto events = std::make_shared<RecordingEvents>();
  const auto link = *network->connect(reader.address(), events);
  EXPECT_FALSE(link->speed());
  const auto message = message_of(std::size_t{1} << 20);
  for (std::size_t sent = 0; sent < kMessages;) {
    if (link->post(message).ok()) {
      ++sent;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  while (reader.bytes() < kMessages * message->size() && !events->closed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(link->speed());
  // The sender is woken when a part of its buffer is free: one window may lack some of it.
  EXPECT_NEAR(link->speed()->bytes_per_second, kSpeed, 0.2 * kSpeed);
  EXPECT_TRUE(link->speed()->receiver_bound);
  link->close();
}

TEST(TcpSpeed, IsUnknownWhenNothingEverWaited) {
  SlowReader reader(1e9);
  const auto network = std::move(*make_tcp_network());
  const auto link = *network->connect(reader.address(), std::make_shared<RecordingEvents>());
  const auto message = message_of(10'000);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(link->post(message).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  EXPECT_FALSE(link->speed());
  link->close();
}

}  // namespace
}  // namespace kvlane
