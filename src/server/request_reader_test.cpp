// Long bodies are read on another thread, with the same results and the same exceptions.
// SPDX-License-Identifier: Apache-2.0
#include "server/request_reader.h"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>

#include "server/event_loop.h"

namespace kvlane {
namespace {

constexpr std::size_t kLong = 1 << 20;

TEST(RequestReader, LongBodiesAreReadElsewhere) {
  EventLoop loop;
  RequestReader reader(loop.executor());
  for (const std::size_t bytes : {std::size_t{1}, kLong}) {
    bool elsewhere = false;
    loop.run_coroutine([&]() -> asio::awaitable<void> {
      const auto here = std::this_thread::get_id();
      const std::function<bool()> read = [here] { return std::this_thread::get_id() != here; };
      elsewhere = co_await reader.read(read, bytes);
    });
    EXPECT_EQ(elsewhere, bytes == kLong);
  }
}

// On the other thread an exception would end the process.
TEST(RequestReader, AnExceptionIsTheRequests) {
  EventLoop loop;
  RequestReader reader(loop.executor());
  for (const std::size_t bytes : {std::size_t{1}, kLong}) {
    bool caught = false;
    loop.run_coroutine([&]() -> asio::awaitable<void> {
      const std::function<std::string()> read = []() -> std::string { throw std::bad_alloc(); };
      try {
        co_await reader.read(read, bytes);
      } catch (const std::bad_alloc&) {
        caught = true;
      }
    });
    EXPECT_TRUE(caught) << bytes;
  }
}

}  // namespace
}  // namespace kvlane
