// The test double: it must misbehave exactly as told, or the tests above it prove nothing.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/test_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/test_support.h"

namespace kvlane {
namespace {

using testing::RecordingEvents;

// One link between two recorders.
struct Wired {
  explicit Wired(TestNetwork::Options options) : network(TestNetwork::create(options)) {
    address = *network->listen({"test", 0}, [this](std::shared_ptr<Link> link) {
      there_link = std::move(link);
      return there;
    });
    here_link = *network->connect(address, here);
  }
  Status post(int number, std::size_t size = 1) {
    return here_link->post(share(Bytes(size, static_cast<std::byte>(number))));
  }
  std::vector<int> received() const {
    std::vector<int> numbers;
    for (const Bytes& message : there->messages()) {
      numbers.push_back(std::to_integer<int>(message[0]));
    }
    return numbers;
  }

  std::unique_ptr<TestNetwork> network;
  Address address;
  std::shared_ptr<RecordingEvents> here = std::make_shared<RecordingEvents>();
  std::shared_ptr<RecordingEvents> there = std::make_shared<RecordingEvents>();
  std::shared_ptr<Link> here_link;
  std::shared_ptr<Link> there_link;
};

std::vector<int> numbers_to(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = i;
  return numbers;
}

TEST(TestLink, DelaysKeepTheOrder) {
  TestFaults faults;
  faults.delay_min = Seconds(1);
  faults.delay_max = Seconds(3);
  Wired wired({.faults = faults});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(wired.post(i).ok());
  wired.network->run_for(Seconds(0.9));
  EXPECT_TRUE(wired.received().empty());
  wired.network->run_for(Seconds(3.2));
  EXPECT_EQ(wired.received(), numbers_to(100));
}

TEST(TestLink, LossIsSeededAndOfTheRightSize) {
  const auto received = [](std::uint64_t seed) {
    TestFaults faults;
    faults.seed = seed;
    faults.loss = 0.3;
    Wired wired({.faults = faults});
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(wired.post(i).ok());
    wired.network->run_for(Seconds(1));
    return wired.received();
  };
  const auto first = received(1);
  EXPECT_EQ(first, received(1));
  EXPECT_NE(first, received(2));
  // 200 * 0.7 = 140, standard deviation 6.5: four of them.
  EXPECT_NEAR(static_cast<double>(first.size()), 140, 26);
  EXPECT_TRUE(std::ranges::is_sorted(first));
}

TEST(TestLink, BandwidthTakesTimeAndIsMeasured) {
  TestFaults faults;
  faults.bytes_per_second = 10e6;
  Wired wired({.faults = faults});
  EXPECT_FALSE(wired.here_link->speed());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(wired.post(i, 500'000).ok());
  wired.network->run_for(Seconds(0.26));  // 50 ms each, 1 ms to connect, 1 ms of delay
  EXPECT_EQ(wired.received(), numbers_to(5));
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(wired.received(), numbers_to(8));
  ASSERT_TRUE(wired.here_link->speed());
  EXPECT_NEAR(wired.here_link->speed()->bytes_per_second, 10e6, 0.3e6);
  EXPECT_FALSE(wired.there_link->speed());
}

TEST(TestLink, ReorderLosesNothing) {
  TestFaults faults;
  faults.reorder = 0.5;
  faults.delay_max = Seconds(0.02);
  Wired wired({.faults = faults});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(wired.post(i).ok());
  wired.network->run_for(Seconds(1));
  auto received = wired.received();
  EXPECT_FALSE(std::ranges::is_sorted(received));
  std::ranges::sort(received);
  EXPECT_EQ(received, numbers_to(100));
}

TEST(TestLink, CutsAfterMessages) {
  TestFaults faults;
  faults.cut_after_messages = 3;
  Wired wired({.faults = faults});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(wired.post(i).ok());
  EXPECT_EQ(wired.post(4).code(), Code::kUnavailable);
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(wired.received(), numbers_to(3));
  EXPECT_EQ(wired.here->closed()->code(), Code::kUnavailable);
  EXPECT_EQ(wired.there->closed()->code(), Code::kUnavailable);
}

TEST(TestLink, CutsAfterBytes) {
  TestFaults faults;
  faults.cut_after_bytes = 25;
  Wired wired({.faults = faults});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(wired.post(i, 10).ok());
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(wired.received(), numbers_to(2));
  EXPECT_TRUE(wired.there->closed().has_value());
}

TEST(TestLink, SilentCutsTellNobody) {
  Wired wired({});
  ASSERT_TRUE(wired.post(0).ok());
  wired.network->run_for(Seconds(1));
  ASSERT_TRUE(wired.post(1).ok());
  wired.network->cut(/*silent=*/true);
  EXPECT_TRUE(wired.post(2).ok());
  wired.network->run_for(Seconds(10));
  EXPECT_EQ(wired.received(), numbers_to(1));
  EXPECT_FALSE(wired.here->closed() || wired.there->closed());
}

TEST(TestLink, TheQueueHasALimitAndTellsWhenThereIsRoom) {
  Wired wired({.faults = {}, .queue_bytes_max = 100});
  EXPECT_TRUE(wired.post(0, 60).ok());
  EXPECT_TRUE(wired.post(1, 60).ok());
  EXPECT_EQ(wired.post(2, 1).code(), Code::kExhausted);
  EXPECT_EQ(wired.here->writable(), 0);
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(wired.here->writable(), 1);
  EXPECT_TRUE(wired.post(2, 1).ok());
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(wired.received(), numbers_to(3));
  EXPECT_EQ(wired.here->writable(), 1);
}

TEST(TestLink, CloseComesAfterWhatWasPosted) {
  Wired wired({});
  ASSERT_TRUE(wired.post(0).ok());
  wired.here_link->close();
  EXPECT_EQ(wired.post(1).code(), Code::kUnavailable);
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(wired.received(), numbers_to(1));
  EXPECT_EQ(wired.there->closed()->code(), Code::kAborted);
  EXPECT_FALSE(wired.here->closed().has_value());
  EXPECT_EQ(wired.here.use_count(), 1) << "the listener is let go of";
  EXPECT_EQ(wired.there_link->post(share(Bytes(1))).code(), Code::kUnavailable);
}

TEST(TestLink, NobodyListensAndRefusals) {
  Wired wired({});
  const auto lonely = std::make_shared<RecordingEvents>();
  const auto link = *wired.network->connect({"test", 9}, lonely);
  EXPECT_TRUE(link->post(share(Bytes(1))).ok());
  const auto picky = *wired.network->listen(
      {"test", 0}, [](const std::shared_ptr<Link>&) { return std::shared_ptr<LinkEvents>(); });
  const auto refused = std::make_shared<RecordingEvents>();
  const auto refused_link = *wired.network->connect(picky, refused);
  wired.network->run_for(Seconds(1));
  EXPECT_EQ(lonely->closed()->code(), Code::kUnavailable);
  EXPECT_EQ(refused->closed()->code(), Code::kAborted);
  EXPECT_EQ(wired.network->listen(picky, {}).status().code(), Code::kUnavailable);
}

TEST(TestLink, TimersFollowTheVirtualClock) {
  auto network = TestNetwork::create({});
  std::vector<int> order;
  network->call_after(Seconds(100), [&] { order.push_back(2); });
  network->call_after(Seconds(50), [&] {
    order.push_back(0);
    network->call_after(Seconds(10), [&] { order.push_back(1); });
  });
  const TimePoint start = network->now();
  EXPECT_TRUE(network->run_until([&] { return order.size() == 3; }, Seconds(200)));
  EXPECT_EQ(order, numbers_to(3));
  EXPECT_NEAR(seconds_between(start, network->now()), 100, 1e-6);
  EXPECT_FALSE(network->step());
  EXPECT_FALSE(network->run_until([] { return false; }, Seconds(1)));
}

TEST(TestLink, LinksOutliveTheNetwork) {
  Wired wired({});
  ASSERT_TRUE(wired.post(0).ok());
  wired.network.reset();
  EXPECT_EQ(wired.post(1).code(), Code::kUnavailable);
  EXPECT_EQ(wired.here.use_count(), 1);
  wired.here_link->close();
  EXPECT_TRUE(wired.received().empty());
}

TEST(TestLink, TheOwnThreadDelivers) {
  Wired wired({.drive = TestNetwork::Drive::kThread});
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(wired.post(i).ok());
  ASSERT_TRUE(wired.there->wait_messages(50));
  EXPECT_EQ(wired.received(), numbers_to(50));
  wired.network->cut(/*silent=*/false);
  EXPECT_TRUE(wired.here->wait_closed());
  EXPECT_TRUE(wired.there->wait_closed());
}

}  // namespace
}  // namespace kvlane
