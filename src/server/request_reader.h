// Reading what clients send: short bodies where they arrive, long ones on a thread of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

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
    // An exception, as of no memory, is the request's, as it is where bodies are short; on the
    // pool's thread it would end the process.
    struct Done {
      std::optional<T> result;
      std::exception_ptr thrown;
    };
    const auto mailbox = std::make_shared<Mailbox<Done>>(executor_);
    asio::post(thread_, [mailbox, read] {
      Done done;
      try {
        done.result = read();
      } catch (...) {
        done.thrown = std::current_exception();
      }
      mailbox->push(std::move(done));
    });
    Done done = co_await mailbox->take();
    if (done.thrown) std::rethrow_exception(done.thrown);
    co_return std::move(*done.result);
  }

 private:
  // Up to that, less than a millisecond or so.
  static constexpr std::size_t kReadHereBytesMax = 16 << 10;

  asio::any_io_executor executor_;
  asio::thread_pool thread_{1};
};

}  // namespace kvlane
