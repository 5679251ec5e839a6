// How other threads hand values to a coroutine on the loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "server/coroutine.h"

namespace kvlane {

// What became of an attempt to add a newer value to an older one.
enum class MergeResult {
  kMerged,
  kUnrelated,  // nothing; an even older value may be the one
  kSeparate,   // nothing; the newer value stays on its own
};

// push() from any thread, take() from one coroutine on the executor's thread. Held by shared
// pointers on both sides, so that neither must outlive the other; the executor's loop outlives
// both.
template <class T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  using Merge = MergeResult (*)(T& older, T& newer);
  // With `merge`, when this many values wait, a further one is merged into the last to which it
  // belongs. So a reader that is slow (a client that is) costs little memory.
  static constexpr std::size_t kSeparateMax = 32;

  explicit Mailbox(const asio::any_io_executor& executor, Merge merge = nullptr)
      : merge_(merge), wake_(executor) {}

  void push(T value) {
    const std::lock_guard lock(mutex_);
    if (!merged(value)) values_.push_back(std::move(value));
    if (!std::exchange(waiting_, false)) return;
    asio::post(wake_.get_executor(), [self = this->shared_from_this()] { self->wake_.cancel(); });
  }

  // The oldest value, as soon as there is one.
  asio::awaitable<T> take() {
    const std::shared_ptr<Mailbox> self = this->shared_from_this();
    boost::system::error_code error;
    auto token = asio::redirect_error(asio::use_awaitable, error);
    for (;;) {
      if (std::unique_lock lock(mutex_); !values_.empty()) {
        T value = std::move(values_.front());
        values_.pop_front();
        co_return value;
      } else {
        waiting_ = true;
      }
      wake_.expires_at(asio::steady_timer::time_point::max());
      co_await wake_.async_wait(token);  // throws when the coroutine is cancelled
    }
  }

 private:
  bool merged(T& value) {
    if (merge_ == nullptr || values_.size() < kSeparateMax) return false;
    for (auto older = values_.rbegin(); older != values_.rend(); ++older) {
      const MergeResult result = merge_(*older, value);
      if (result != MergeResult::kUnrelated) return result == MergeResult::kMerged;
    }
    return false;
  }

  std::mutex mutex_;
  std::deque<T> values_;
  bool waiting_ = false;
  Merge merge_;
  asio::steady_timer wake_;
};

}  // namespace kvlane
