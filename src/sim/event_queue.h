// What happens next in simulated time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace kvlane {

// Nanoseconds since the simulation began: whole numbers, so that sums do not depend on their order.
using SimTime = std::int64_t;

// Simulations are shorter than that, thirty years; nor does anything last longer.
inline constexpr double kSimSecondsMax = 1e9;

inline double to_seconds(SimTime time) { return 1e-9 * static_cast<double>(time); }
// Rounded up: nothing is over before it is.
inline SimTime to_sim_time(double seconds) {
  return static_cast<SimTime>(std::ceil(1e9 * std::min(seconds, kSimSecondsMax)));
}

// Events in order of their time, those of one time in the order in which they were added: a
// simulation is a function of its input. Not thread-safe.
class EventQueue {
 public:
  using Action = std::function<void()>;

  SimTime now() const { return now_; }
  // `time` is not before now().
  void at(SimTime time, Action action) { events_.push({time, added_++, std::move(action)}); }
  void after(SimTime duration, Action action) { at(now_ + duration, std::move(action)); }

  // Does what is due first; false when nothing is left.
  bool step() {
    if (events_.empty()) return false;
    // Taken out before it runs, since it adds others. top() is const only to keep the order.
    Event next = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ = next.time;
    next.action();
    return true;
  }

 private:
  struct Event {
    SimTime time;
    std::uint64_t number;
    Action action;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  SimTime now_ = 0;
  std::uint64_t added_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace kvlane
