// Buffers that come back, fit and are bounded.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/message_memory.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvlane {
namespace {

constexpr std::size_t kKiB = 1024;

std::shared_ptr<MessageMemory> make(std::size_t bytes_max) {
  return std::make_shared<MessageMemory>(bytes_max);
}

TEST(MessageMemory, GivesWhatCameBackToTheNext) {
  const auto memory = make(1024 * kKiB);
  auto first = memory->take(200 * kKiB);
  EXPECT_EQ(first->size(), 200 * kKiB);
  const std::byte* const place = first->data();
  auto second = memory->take(200 * kKiB);
  EXPECT_NE(second->data(), place);
  EXPECT_EQ(memory->free_bytes(), 0U);
  std::shared_ptr<const Bytes> shared = std::move(first);
  std::shared_ptr<const Bytes> other = shared;
  shared.reset();
  EXPECT_EQ(memory->free_bytes(), 0U) << "somebody still holds it";
  other.reset();
  EXPECT_EQ(memory->free_bytes(), 208 * kKiB);
  const auto third = memory->take(195 * kKiB);
  EXPECT_EQ(third->data(), place);
  EXPECT_EQ(third->size(), 195 * kKiB);
}

TEST(MessageMemory, TakesTheShortestThatFitsAndNoneTwiceAsLong) {
  const auto memory = make(1024 * kKiB);
  {
    const auto a = memory->take(64 * kKiB);
    const auto b = memory->take(128 * kKiB);
    const auto c = memory->take(256 * kKiB);
  }
  EXPECT_EQ(memory->free_bytes(), 448 * kKiB);
  EXPECT_EQ(memory->take(100 * kKiB)->capacity(), 128 * kKiB);
  EXPECT_EQ(memory->take(130 * kKiB)->capacity(), 256 * kKiB);
  EXPECT_EQ(memory->take(16 * kKiB)->capacity(), 16 * kKiB);
  EXPECT_EQ(memory->take(300 * kKiB)->capacity(), 304 * kKiB);
}

TEST(MessageMemory, KeepsNoMoreThanItsBound) {
  const auto memory = make(256 * kKiB);
  std::vector<std::shared_ptr<Bytes>> used;
  for (int i = 0; i < 3; ++i) used.push_back(memory->take(128 * kKiB));  // one more than it keeps
  used.pop_back();
  EXPECT_EQ(memory->free_bytes(), 0U);
  used.pop_back();
  EXPECT_EQ(memory->free_bytes(), 128 * kKiB);
  // What is free makes room for what is needed.
  used.push_back(memory->take(16 * kKiB));
  EXPECT_EQ(memory->free_bytes(), 0U);
}

TEST(MessageMemory, CountsBuffersThatGrewOrWereTakenAway) {
  const auto memory = make(1024 * kKiB);
  memory->take(16 * kKiB)->resize(64 * kKiB);
  EXPECT_EQ(memory->free_bytes(), 64 * kKiB);
  *memory->take(64 * kKiB) = Bytes();
  EXPECT_EQ(memory->free_bytes(), 0U);
}

TEST(MessageMemory, MessagesMayOutliveIt) {
  auto memory = make(1024 * kKiB);
  const auto message = memory->take(16 * kKiB);
  message->clear();
  memory.reset();
  message->push_back(std::byte{7});
  EXPECT_EQ(message->front(), std::byte{7});
}

TEST(MessageMemory, ManyThreadsAtOnce) {
  const auto memory = make(256 * kKiB);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&memory, thread] {
      for (std::size_t i = 0; i < 500; ++i) {
        const auto buffer = memory->take((i * 7 + thread) % 90 * kKiB);
        buffer->assign(10, std::byte(thread));
        EXPECT_EQ(buffer->back(), std::byte(thread));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(memory->free_bytes(), 256 * kKiB);
}

}  // namespace
}  // namespace kvlane
