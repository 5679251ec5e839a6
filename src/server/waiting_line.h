// Requests that wait, in the order they came, until workers have room.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <list>

#include "base/clock.h"
#include "server/coroutine.h"

namespace kvlane {

// Only the first in the line tries its luck; so the workers are asked seldom, and nobody overtakes.
// On the loop's thread.
class WaitingLine {
 public:
  // A place in the line; leaving it (by destruction) lets the next one forward.
  class Place {
   public:
    Place(WaitingLine& line, const asio::any_io_executor& executor)
        : line_(line), wake_(executor), self_(line.places_.insert(line.places_.end(), this)) {}
    ~Place() {
      line_.places_.erase(self_);
      if (!line_.places_.empty()) line_.places_.front()->wake_.cancel();
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    bool first() const { return line_.places_.front() == this; }

    // Returns at `until`, or earlier when this has become the first.
    asio::awaitable<void> wait(TimePoint until) {
      boost::system::error_code error;
      auto token = asio::redirect_error(asio::use_awaitable, error);
      wake_.expires_at(until);
      co_await wake_.async_wait(token);
    }

   private:
    WaitingLine& line_;
    asio::steady_timer wake_;
    std::list<Place*>::iterator self_;
  };

  std::size_t size() const { return places_.size(); }

 private:
  std::list<Place*> places_;
};

}  // namespace kvlane
