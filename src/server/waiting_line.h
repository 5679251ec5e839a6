// Requests that wait, in the order they came, until workers have room.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/clock.h"
#include "server/coroutine.h"

namespace kvlane {

// Only the first in the line tries its luck, and nobody does for a while once one was refused; so
// the workers are asked seldom, and nobody overtakes. On the loop's thread.
class WaitingLine {
 public:
  // A place in the line, at first at its end. Whoever steps out lets the next one forward.
  class Place {
   public:
    Place(WaitingLine& line, const asio::any_io_executor& executor)
        : line_(line), wake_(executor), number_(++line.last_number_) {
      step_in();
    }
    ~Place() { step_out(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Where it was: before all that came later.
    void step_in() { line_.places_.emplace(number_, this); }
    void step_out() {
      const bool first = is_first();
      line_.places_.erase(number_);
      if (!first || line_.places_.empty()) return;
      line_.places_.begin()->second->wake_.cancel();
    }

    // When this may try: TimePoint::max() unless it is the first.
    TimePoint turn() const { return is_first() ? line_.open_at_ : TimePoint::max(); }

    // Returns at `until`, or earlier when this has become the first.
    asio::awaitable<void> wait(TimePoint until) {
      boost::system::error_code error;
      auto token = asio::redirect_error(asio::use_awaitable, error);
      wake_.expires_at(until);
      co_await wake_.async_wait(token);
    }

   private:
    bool is_first() const {
      return !line_.places_.empty() && line_.places_.begin()->second == this;
    }

    WaitingLine& line_;
    asio::steady_timer wake_;
    const std::uint64_t number_;
  };

  std::size_t size() const { return places_.size(); }
  // One was refused: nobody in the line tries before that.
  void close_until(TimePoint when) { open_at_ = when; }

 private:
  std::map<std::uint64_t, Place*> places_;  // by the order in which they came
  std::uint64_t last_number_ = 0;
  TimePoint open_at_ = TimePoint::min();
};

}  // namespace kvlane
