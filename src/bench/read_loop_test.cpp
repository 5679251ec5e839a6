// Loops of reads: every item once, as many under way as there are slots, errors end them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/read_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

namespace kvlane {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kItems = 300;

// Reads end on a thread of their own, in another order than they were begun.
class Device {
 public:
  Device() : thread_([this] { run(); }) {}
  ~Device() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  ReadLoop::Begin begin() {
    return [this](std::size_t index, std::span<std::byte> memory, ReadLoop::Done done) {
      EXPECT_EQ(memory.size(), kPage);
      std::memcpy(memory.data(), &index, sizeof index);
      const std::lock_guard lock(mutex_);
      waiting_.push_back([index, this, done = std::move(done)] {
        done(index == bad ? unavailable("item " + std::to_string(index)) : Status());
      });
      most = std::max(most, waiting_.size());
      changed_.notify_one();
    };
  }

  std::size_t bad = kItems;
  std::size_t most = 0;  // under way at once

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto done = std::move(waiting_.back());
      waiting_.pop_back();
      lock.unlock();
      done();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> waiting_;
  bool ending_ = false;
  std::thread thread_;
};

class ReadLoopTest : public ::testing::Test {
 protected:
  ReadLoopTest() : order_(kItems), taken_(kItems) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::swap(order_[3], order_[200]);
  }

  ReadLoop::Take take() {
    return [this](std::size_t index, ByteView memory, std::size_t slot) {
      std::size_t read = 0;
      std::memcpy(&read, memory.data(), sizeof read);
      EXPECT_EQ(read, index);
      EXPECT_LT(slot, loop_.slots());
      taken_[index] += 1;
      return index == refused_ ? corrupt("wrong") : Status();
    };
  }
  int taken() const { return std::accumulate(taken_.begin(), taken_.end(), 0); }

  std::vector<std::size_t> order_;
  std::vector<std::atomic<int>> taken_;
  std::size_t refused_ = kItems;
  ReadLoop loop_;
  Device device_;
};

TEST_F(ReadLoopTest, EveryItemIsTakenOnce) {
  ASSERT_TRUE(loop_.reserve(5, kPage).ok());
  for (const int threads : {1, 3}) {
    for (auto& times : taken_) times = 0;
    ASSERT_TRUE(loop_.run(order_, threads, device_.begin(), take()).ok());
    for (const auto& times : taken_) EXPECT_EQ(times, 1);
  }
  EXPECT_LE(device_.most, 5U);
}

TEST_F(ReadLoopTest, MoreSlotsThanItems) {
  ASSERT_TRUE(loop_.reserve(8, kPage).ok());
  ASSERT_TRUE(loop_.run(std::span(order_).first(3), 2, device_.begin(), take()).ok());
  EXPECT_EQ(taken(), 3);
  ASSERT_TRUE(loop_.run({}, 2, device_.begin(), take()).ok());
  EXPECT_EQ(taken(), 3);
}

TEST_F(ReadLoopTest, ReadsThatEndAtOnce) {
  ASSERT_TRUE(loop_.reserve(2, kPage).ok());
  const auto at_once = [](std::size_t index, std::span<std::byte> memory,
                          const ReadLoop::Done& done) {
    std::memcpy(memory.data(), &index, sizeof index);
    done({});
  };
  ASSERT_TRUE(loop_.run(order_, 1, at_once, take()).ok());
  EXPECT_EQ(taken(), static_cast<int>(kItems));
}

TEST_F(ReadLoopTest, ErrorsEndItAndItMayGoOn) {
  ASSERT_TRUE(loop_.reserve(4, kPage).ok());
  device_.bad = 50;
  Status status = loop_.run(order_, 2, device_.begin(), take());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "item 50");
  EXPECT_LT(taken(), static_cast<int>(kItems));
  device_.bad = kItems;
  refused_ = 20;
  status = loop_.run(order_, 1, device_.begin(), take());
  EXPECT_EQ(status.code(), Code::kCorrupt);
  refused_ = kItems;
  for (auto& times : taken_) times = 0;
  EXPECT_TRUE(loop_.run(order_, 2, device_.begin(), take()).ok());
  EXPECT_EQ(taken(), static_cast<int>(kItems));
}

}  // namespace
}  // namespace kvlane
