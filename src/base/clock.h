// Durations. Processes exchange durations only; a time point never leaves the process that took it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kvlane {

using SteadyClock = std::chrono::steady_clock;
using TimePoint = SteadyClock::time_point;
using Seconds = std::chrono::duration<double>;

inline SteadyClock::duration ticks(Seconds seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(seconds);
}
inline double seconds_between(TimePoint start, TimePoint end) {
  return Seconds(end - start).count();
}
inline double seconds_since(TimePoint start) { return seconds_between(start, SteadyClock::now()); }

// Adds the seconds of its life to a sum.
class ScopedTimer {
 public:
  explicit ScopedTimer(double& sum) : sum_(sum), start_(SteadyClock::now()) {}
  ~ScopedTimer() { sum_ += seconds_since(start_); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  double& sum_;
  TimePoint start_;
};

}  // namespace kvlane
