// Reading what clients send: short bodies where they arrive, long ones on a thread of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>

#include "server/coroutine.h"
#include "server/mailbox.h"

namespace kvlane {

// On the executor's thread. What its reading refers to outlives it.
class RequestReader {
 public:
  explicit RequestReader(asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // What `read` returns: run on another thread when `body_bytes` are many, because tokenising a
  // long prompt takes a while, and streams must not stutter. It may still run when the caller is
  // gone.
  template <class T>
  asio::awaitable<T> read(std::function<T()> read, std::size_t body_bytes) {
    if (body_bytes <= kReadHereBytesMax) co_return read();
    const auto mailbox = std::make_shared<Mailbox<T>>(executor_);
    asio::post(thread_, [mailbox, read] { mailbox->push(read()); });
    T result = co_await mailbox->take();
    co_return result;
  }

 private:
  // Up to that, less than a millisecond or so.
  static constexpr std::size_t kReadHereBytesMax = 16 << 10;

  asio::any_io_executor executor_;
  asio::thread_pool thread_{1};
};

}  // namespace kvlane
