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
      loop.executor(), [](std::string& older, std::string& newer) {
        older += newer;
        return MergeResult::kMerged;
      });
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

// Values of two kinds, told apart by their first letter; "." stands alone.
TEST(MailboxTest, MergesOnlyWhatBelongsTogetherAndKeepsItsOrder) {
  EventLoop loop;
  const auto mailbox = std::make_shared<Mailbox<std::string>>(
      loop.executor(), [](std::string& older, std::string& newer) {
        if (newer[0] == '.') return MergeResult::kSeparate;
        if (older[0] != newer[0]) return MergeResult::kUnrelated;
        older += newer.substr(1);
        return MergeResult::kMerged;
      });
  for (int i = 0; i < 500; ++i) {
    mailbox->push("a" + std::to_string(i) + " ");
    mailbox->push("b" + std::to_string(i) + " ");
  }
  mailbox->push(".");
  std::string a;
  std::string b;
  std::size_t values = 0;
  loop.run_coroutine([&]() -> asio::awaitable<void> {
    for (;;) {
      const std::string value = co_await mailbox->take();
      if (value == ".") break;
      ++values;
      (value[0] == 'a' ? a : b) += value.substr(1);
    }
  });
  std::string sent;
  for (int i = 0; i < 500; ++i) sent += std::to_string(i) + " ";
  EXPECT_EQ(a, sent);
  EXPECT_EQ(b, sent);
  EXPECT_EQ(values, Mailbox<std::string>::kSeparateMax);
}

}  // namespace
}  // namespace kvlane
