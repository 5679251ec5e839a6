// Peers that are killed or frozen: processes of their own, which this program starts as itself.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "transfer/test_network.h"
#include "transfer/test_support.h"

extern char** environ;

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using testing::id_of;
using testing::RecordingEvents;

std::shared_ptr<const Bytes> megabyte() {
  return share(encode_slab(id_of(1), Bytes(1 << 20, std::byte{0x55})));
}

class UcxDeaths : public ::testing::Test {
 protected:
  UcxDeaths()
      : network_(std::move(*make_ucx_network({.devices = "lo", .silence_timeout = Seconds(0.8)}))) {
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      const std::lock_guard lock(mutex_);
      link_ = std::move(link);
      return events_;
    });
  }
  ~UcxDeaths() override {
    network_.reset();
    end();
  }

  // A peer that connects, sends its first message, and then sends or receives large ones.
  void start(const char* what) {
    const std::string port = std::to_string(address_.port);
    std::string arguments[] = {"ucx_test", "--peer", what, port};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), nullptr};
    ASSERT_EQ(::posix_spawn(&child_, "/proc/self/exe", nullptr, nullptr, argv, environ), 0);
    ASSERT_TRUE(events_->wait_messages(1));
  }
  void signal(int number) const { ASSERT_EQ(::kill(child_, number), 0); }
  void end() {
    if (child_ == 0) return;
    (void)::kill(child_, SIGKILL);
    (void)::waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  std::shared_ptr<Link> link() {
    const std::lock_guard lock(mutex_);
    return link_;
  }
  // Keeps the link full until it is gone.
  void feed() {
    const auto message = megabyte();
    (void)link()->post(share(encode_error(id_of(1), aborted("the first is a small one"))));
    while (link()->post(message).code() != Code::kUnavailable) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  pid_t child_ = 0;
  std::shared_ptr<RecordingEvents> events_ = std::make_shared<RecordingEvents>();
  std::mutex mutex_;
  std::shared_ptr<Link> link_;
  Address address_;
  std::unique_ptr<Network> network_;
};

TEST_F(UcxDeaths, AKilledSender) {
  for (int i = 0; i < 3; ++i) {
    events_ = std::make_shared<RecordingEvents>();
    start("send");
    ASSERT_TRUE(events_->wait_messages(5 + i));
    end();
    const TimePoint killed = SteadyClock::now();
    ASSERT_TRUE(events_->wait_closed());
    EXPECT_LT(seconds_since(killed), 0.8) << "by UCX, not by silence";
    EXPECT_EQ(events_->closed()->code(), Code::kUnavailable) << events_->closed()->message();
    EXPECT_THAT(events_->closed()->message(), HasSubstr("broke"));
  }
}

TEST_F(UcxDeaths, AKilledReceiver) {
  for (int i = 0; i < 3; ++i) {
    events_ = std::make_shared<RecordingEvents>();
    start("receive");
    std::thread feeding([this] { feed(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * i));
    end();
    ASSERT_TRUE(events_->wait_closed());
    EXPECT_EQ(events_->closed()->code(), Code::kUnavailable) << events_->closed()->message();
    feeding.join();
  }
}

TEST_F(UcxDeaths, AFrozenPeerIsAsked) {
  for (const char* what : {"send", "receive", "idle"}) {
    SCOPED_TRACE(what);
    events_ = std::make_shared<RecordingEvents>();
    start(what);
    std::thread feeding([&] {
      if (what == std::string("receive")) feed();
    });
    signal(SIGSTOP);
    const TimePoint stopped = SteadyClock::now();
    ASSERT_TRUE(events_->wait_closed());
    EXPECT_GT(seconds_since(stopped), 0.6);
    EXPECT_EQ(events_->closed()->code(), Code::kUnavailable) << events_->closed()->message();
    EXPECT_THAT(events_->closed()->message(), HasSubstr("no sign of the peer for 0.8 s"));
    feeding.join();
    end();
  }
}

// The peer leaves in order: it says so first.
TEST_F(UcxDeaths, APeerThatEndsClosesItsLinks) {
  start("leave");
  ASSERT_TRUE(events_->wait_closed());
  EXPECT_EQ(events_->closed()->code(), Code::kAborted);
}

// One that freezes for less than the limit goes on.
TEST_F(UcxDeaths, AShortFreezeIsNothing) {
  start("send");
  signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  signal(SIGCONT);
  const std::size_t before = events_->messages().size();
  EXPECT_TRUE(events_->wait_messages(before + 3));
  EXPECT_FALSE(events_->closed().has_value());
}

// What the processes do.
int run_peer(const std::string& what, std::uint16_t port) {
  auto network = std::move(*make_ucx_network({.devices = "lo"}));
  const auto events = std::make_shared<RecordingEvents>();
  const auto link = *network->connect({"127.0.0.1", port}, events);
  if (!link->post(share(encode_error(id_of(1), aborted("hello")))).ok()) return 1;
  if (what == "leave") {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return 0;
  }
  const auto message = megabyte();
  // Not for ever, should nobody kill it.
  for (int i = 0; i < 10'000 && !events->closed(); ++i) {
    if (what == "send" && i < 60) (void)link->post(message);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return 0;
}

}  // namespace
}  // namespace kvlane

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--peer") {
    return kvlane::run_peer(argv[2], static_cast<std::uint16_t>(std::stoi(argv[3])));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
