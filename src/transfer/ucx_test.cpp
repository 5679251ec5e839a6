// The UCX network beyond what all networks are tested for: devices, limits, large messages, many
// links, and peers that speak UCX but not our protocol, or not even UCX.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "transfer/test_network.h"
#include "transfer/test_support.h"
#include "transfer/ucx_connection.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using testing::id_of;
using testing::RecordingEvents;

Bytes small(int number) {
  return encode_error(id_of(1), aborted("number " + std::to_string(number)));
}
Bytes large(std::size_t body, std::uint8_t value = 0x77) {
  return encode_slab(id_of(1), Bytes(body, std::byte{value}));
}

// A network that listens; `there_` hears what comes to the links it accepts from now on.
class Ucx : public ::testing::Test {
 protected:
  explicit Ucx(const UcxOptions& options = {.devices = "lo"})
      : network_(std::move(*make_ucx_network(options))) {
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(link));
      return there_;
    });
  }
  ~Ucx() override { network_.reset(); }

  std::shared_ptr<Link> accepted() {
    const std::lock_guard lock(mutex_);
    return accepted_.empty() ? nullptr : accepted_.back();
  }
  std::size_t accepted_count() {
    const std::lock_guard lock(mutex_);
    return accepted_.size();
  }
  void listen_anew() {
    const std::lock_guard lock(mutex_);
    there_ = std::make_shared<RecordingEvents>();
  }
  // Links work: for after what should disturb nobody.
  void expect_service() {
    listen_anew();
    const auto here = std::make_shared<RecordingEvents>();
    const auto link = *network_->connect(address_, here);
    ASSERT_TRUE(link->post(share(small(1))).ok());
    ASSERT_TRUE(there_->wait_messages(1));
  }

  std::shared_ptr<RecordingEvents> here_ = std::make_shared<RecordingEvents>();
  std::shared_ptr<RecordingEvents> there_ = std::make_shared<RecordingEvents>();
  std::mutex mutex_;
  std::vector<std::shared_ptr<Link>> accepted_;
  Address address_;
  std::unique_ptr<Network> network_;
};

TEST(UcxOptions, DevicesAreNamedAndThere) {
  EXPECT_TRUE(has_ucx());
  const auto without = make_ucx_network({});
  EXPECT_EQ(without.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(without.status().message(), HasSubstr("names of its devices"));
  const auto unknown = make_ucx_network({.devices = "nodevice7"});
  EXPECT_EQ(unknown.status().code(), Code::kUnavailable);
  EXPECT_THAT(unknown.status().message(), HasSubstr("'nodevice7'"));
  EXPECT_THAT(make_ucx_network({.devices = "lo,nodevice7"}).status().message(),
              HasSubstr("nodevice7"));
}

// Inodes of this process's sockets.
std::set<std::string> own_sockets() {
  std::set<std::string> found;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(folder)) {
    char target[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target, sizeof target - 1) < 0) continue;
    const std::string text = target;
    if (text.starts_with("socket:[")) found.insert(text.substr(8, text.size() - 9));
  }
  ::closedir(folder);
  return found;
}

TEST_F(Ucx, ListensOnItsDeviceAlone) {
  const std::set<std::string> own = own_sockets();
  int listening = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, skipped, inode;
      fields >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      if (state != "0A" || !own.contains(inode)) continue;
      ++listening;
      EXPECT_TRUE(local.starts_with("0100007F:") ||
                  local.starts_with("00000000000000000000000001000000:"))
          << line;
    }
  }
  EXPECT_GE(listening, 1);
}

TEST_F(Ucx, TheLargestMessagesArrive) {
  const auto link = *network_->connect(address_, here_);
  ASSERT_TRUE(link->post(share(small(1))).ok());
  const auto message = share(large(kSlabBodyBytesMax, 0x31));
  ASSERT_TRUE(link->post(message).ok());
  ASSERT_TRUE(there_->wait_messages(2, 30));
  EXPECT_TRUE(there_->messages()[1] == *message);
  ASSERT_TRUE(accepted()->post(share(small(2))).ok());
  ASSERT_TRUE(accepted()->post(message).ok());
  ASSERT_TRUE(here_->wait_messages(2, 30));
  EXPECT_TRUE(here_->messages()[1] == *message);
}

// Eager ones and those that are fetched, on both sides of the border between them.
TEST_F(Ucx, OrderIsThatOfPosting) {
  const auto link = *network_->connect(address_, here_);
  std::vector<Bytes> sent = {small(0)};
  for (std::size_t i = 1; i < 400; ++i) {
    const std::size_t body = i % 3 == 0   ? kUcxEagerBytesMax + i % 2
                             : i % 3 == 1 ? i
                                          : i % 50 * 20'000;
    sent.push_back(large(body, static_cast<std::uint8_t>(i)));
  }
  for (const Bytes& message : sent) {
    Status status = link->post(share(message));
    for (; status.code() == Code::kExhausted; status = link->post(share(message))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(status.ok());
  }
  ASSERT_TRUE(there_->wait_messages(sent.size()));
  EXPECT_TRUE(there_->messages() == sent);
}

TEST_F(Ucx, ManyLinks) {
  constexpr int kLinks = 100;
  std::vector<std::shared_ptr<Link>> links;
  for (int i = 0; i < kLinks; ++i) {
    links.push_back(*network_->connect(address_, here_));
    ASSERT_TRUE(links.back()->post(share(small(i))).ok());
    ASSERT_TRUE(links.back()->post(share(large(20'000))).ok());
  }
  EXPECT_TRUE(there_->wait_messages(2 * kLinks, 30));
  EXPECT_EQ(accepted_count(), std::size_t{kLinks});
  for (const auto& link : accepted_) ASSERT_TRUE(link->post(share(small(1))).ok());
  EXPECT_TRUE(here_->wait_messages(kLinks, 30));
  EXPECT_FALSE(here_->closed().has_value());
  network_.reset();  // all at once, before one by one tells `there_` of its end
}

TEST_F(Ucx, ClosingTwiceFromBothSidesAtOnce) {
  for (int i = 0; i < 20; ++i) {
    listen_anew();
    const auto here = std::make_shared<RecordingEvents>();
    const auto link = *network_->connect(address_, here);
    ASSERT_TRUE(link->post(share(small(1))).ok());
    ASSERT_TRUE(there_->wait_messages(1));
    std::thread other([peer = accepted()] {
      peer->close();
      peer->close();
    });
    link->close();
    link->close();
    other.join();
    EXPECT_EQ(link->post(share(small(1))).code(), Code::kUnavailable);
  }
  expect_service();
}

TEST_F(Ucx, ALinkMayBeClosedFromWithinItsEvents) {
  struct Closer : LinkEvents {
    void on_message(ByteView) override {
      link->close();
      called.set_value();
    }
    void on_closed(Status) override { ADD_FAILURE() << "closed on this side"; }
    std::shared_ptr<Link> link;
    std::promise<void> called;  // a second message would throw
  };
  const auto closer = std::make_shared<Closer>();
  closer->link = *network_->connect(address_, closer);
  ASSERT_TRUE(closer->link->post(share(small(1))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  for (int i = 0; i < 10; ++i) (void)accepted()->post(share(small(i)));
  closer->called.get_future().wait();
  EXPECT_TRUE(there_->wait_closed());
  EXPECT_EQ(there_->closed()->code(), Code::kAborted);
  network_.reset();
  closer->link.reset();
}

TEST_F(Ucx, SpeedIsThatOfWhatThePeerFetched) {
  auto other = std::move(*make_ucx_network({.devices = "lo"}));
  const auto link = *other->connect(address_, here_);
  ASSERT_TRUE(link->post(share(small(1))).ok());
  EXPECT_FALSE(link->speed().has_value());
  const auto message = share(large(1 << 20));
  for (int i = 0; i < 200;) {
    link->post(message).ok() ? void(++i)
                             : std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(there_->wait_messages(201, 30));
  ASSERT_TRUE(link->speed().has_value());
  EXPECT_GT(link->speed()->bytes_per_second, 1e6);
}

class UcxWithLimits : public Ucx {
 protected:
  UcxWithLimits()
      : Ucx({.devices = "lo",
             .silence_timeout = Seconds(0.4),
             .queue_bytes_max = 1 << 20,
             .accepted_max = 2}) {}
};

TEST_F(UcxWithLimits, TheQueueHasALimitAndTellsWhenThereIsRoom) {
  struct Slow : RecordingEvents {
    void on_message(ByteView) override { gate.wait(); }
    std::shared_future<void> gate;
  };
  std::promise<void> open;
  const auto slow = std::make_shared<Slow>();
  slow->gate = open.get_future().share();
  auto receiver = std::move(*make_ucx_network({.devices = "lo"}));
  const Address address = *receiver->listen({"127.0.0.1", 0}, [&](std::shared_ptr<Link> link) {
    const std::lock_guard lock(mutex_);
    accepted_.push_back(std::move(link));
    return slow;
  });
  // Patient with the peer, which does not answer while it is at its message.
  auto sender = std::move(*make_ucx_network({.devices = "lo", .queue_bytes_max = 1 << 20}));
  const auto link = *sender->connect(address, here_);
  const auto message = share(large(1 << 16));
  ASSERT_TRUE(link->post(share(small(1))).ok());
  int refusals = 0;
  do {
    Status status;
    while (status.ok()) status = link->post(message);
    ASSERT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), HasSubstr("bytes queued"));
    ++refusals;
  } while (here_->wait_writable(refusals, 0.3));
  EXPECT_EQ(here_->writable(), refusals - 1);
  open.set_value();
  EXPECT_TRUE(here_->wait_writable(refusals));
  EXPECT_TRUE(link->post(message).ok());
  receiver.reset();
}

TEST_F(UcxWithLimits, TooManyLinksAreRejected) {
  const auto first = *network_->connect(address_, here_);
  ASSERT_TRUE(first->post(share(small(1))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  listen_anew();
  const auto second = *network_->connect(address_, here_);
  ASSERT_TRUE(second->post(share(small(1))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  const auto events = std::make_shared<RecordingEvents>();
  const auto third = *network_->connect(address_, events);
  ASSERT_TRUE(events->wait_closed());
  EXPECT_EQ(events->closed()->code(), Code::kUnavailable);
  EXPECT_THAT(events->closed()->message(), HasSubstr("no connection to " + to_string(address_)));
  EXPECT_EQ(accepted_count(), 2U);
  // There is room again when one has ended.
  first->close();
  for (int i = 0; i < 100 && accepted_count() < 3; ++i) {
    listen_anew();
    const auto again = *network_->connect(address_, std::make_shared<RecordingEvents>());
    (void)again->post(share(small(3)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(accepted_count(), 3U);
}

// Nothing to say for three times the limit is no reason to end a link, and being busy for so long
// is no reason to blame the peer.
TEST_F(UcxWithLimits, QuietLinksStand) {
  auto other = std::move(*make_ucx_network({.devices = "lo"}));
  const auto link = *other->connect(address_, here_);
  ASSERT_TRUE(link->post(share(small(1))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  EXPECT_FALSE(there_->wait_closed(1.2));
  network_->call_after(Seconds(0), [] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
  EXPECT_FALSE(there_->wait_closed(1.5));
  EXPECT_FALSE(here_->closed().has_value());
  ASSERT_TRUE(link->post(share(small(2))).ok());
  EXPECT_TRUE(there_->wait_messages(2));
  other.reset();
}

TEST_F(UcxWithLimits, RefusedByTheAcceptor) {
  const Address address = *network_->listen(
      {"127.0.0.1", 0}, [](const std::shared_ptr<Link>&) { return std::shared_ptr<LinkEvents>(); });
  const auto link = *network_->connect(address, here_);
  ASSERT_TRUE(here_->wait_closed());
  EXPECT_EQ(here_->closed()->code(), Code::kUnavailable);
}

// The usual visitors of a port. Not any bytes: UCX 1.13 ends the process at some
// (docs/protocol.md).
TEST_F(Ucx, OtherProtocolsDisturbNobody) {
  const auto link = *network_->connect(address_, here_);
  ASSERT_TRUE(link->post(share(small(1))).ok());
  ASSERT_TRUE(there_->wait_messages(1));
  const auto first = there_;
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01"), std::string()}) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(address_.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    ::shutdown(socket, SHUT_WR);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::close(socket);
  }
  EXPECT_FALSE(first->closed().has_value());
  ASSERT_TRUE(link->post(share(small(2))).ok());
  EXPECT_TRUE(first->wait_messages(2));
  expect_service();
}

}  // namespace
}  // namespace kvlane
