// Rounds.
// SPDX-License-Identifier: Apache-2.0
#include "bench/interleaved.h"

#include <time.h>

#include <algorithm>
#include <cmath>

#include "bench/figures.h"

namespace kvlane {
namespace {

constexpr double kCallsMax = 1e6;

double now(TimedBy clock) {
  timespec time;
  ::clock_gettime(clock == TimedBy::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void time_in_turns(std::span<Contender> contenders, TimedBy clock, int rounds, double seconds_min,
                   const std::function<void(int round)>& on_round) {
  std::vector<int> calls;
  for (Contender& contender : contenders) {
    contender.run();  // touches memory for the first time
    const double start = now(clock);
    contender.run();
    const double once = std::max(now(clock) - start, 1e-9);
    calls.push_back(static_cast<int>(std::clamp(std::ceil(seconds_min / once), 1.0, kCallsMax)));
  }
  for (int round = 0; round < rounds; ++round) {
    if (on_round) on_round(round);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double start = now(clock);
      for (int call = 0; call < calls[i]; ++call) contenders[i].run();
      contenders[i].seconds.push_back((now(clock) - start) / calls[i]);
    }
  }
}

double speed_ratio(const Contender& base, const Contender& other) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < base.seconds.size(); ++round) {
    ratios.push_back(base.seconds[round] / other.seconds[round]);
  }
  return median(std::move(ratios));
}

}  // namespace kvlane
