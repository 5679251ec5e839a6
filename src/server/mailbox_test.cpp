// Values from many threads to one coroutine.
// SPDX-License-Identifier: Apache-2.0
#include "server/mailbox.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "server/event_loop.h"

namespace kvlane {
namespace {

TEST(MailboxTest, DeliversEverythingInOrder) {
  EventLoop loop;
  const auto mailbox = std::make_shared<Mailbox<int>>(loop.executor());
  std::vector<int> taken;
  std::thread sender([&] {
    for (int i = 0; i < 10000; ++i) mailbox->push(i);
  });
  loop.run_coroutine([&]() -> asio::awaitable<void> {
    for (int i = 0; i < 10000; ++i) {
      const int value = co_await mailbox->take();
      taken.push_back(value);
    }
  });
  sender.join();
  ASSERT_EQ(taken.size(), 10000U);
  for (int i = 0; i < 10000; ++i) EXPECT_EQ(taken[static_cast<std::size_t>(i)], i);
}

TEST(MailboxTest, MergesWhatASlowReaderLeaves) {
  EventLoop loop;
  const auto mailbox = std::make_shared<Mailbox<std::string>>(
      loop.executor(), [](std::string& older, std::string&& newer) { older += newer; });
  std::string sent;
  for (int i = 0; i < 1000; ++i) {
    mailbox->push(std::to_string(i) + " ");
    sent += std::to_string(i) + " ";
  }
  std::string received;
  loop.run_coroutine([&]() -> asio::awaitable<void> {
    for (std::size_t i = 0; i < Mailbox<std::string>::kSeparateMax; ++i) {
      const std::string value = co_await mailbox->take();
      received += value;
    }
  });
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace kvlane
