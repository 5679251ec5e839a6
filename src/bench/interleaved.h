// Timing several things in turn, so that what disturbs the machine falls on all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvlane {

struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;  // of one call, one entry a round
};

// kOneThread: processor time of the calling thread, so that turns of other programs do not count.
// kWall: for work on several threads.
enum class TimedBy { kOneThread, kWall };

// Runs every contender untimed at first; then `rounds` times all of them in turn, each as often in
// a row as it takes to fill `seconds_min`.
void time_in_turns(std::span<Contender> contenders, TimedBy clock, int rounds, double seconds_min,
                   const std::function<void(int round)>& on_round);

// The median over the rounds of how many times as fast as `base` the other one was.
double speed_ratio(const Contender& base, const Contender& other);

}  // namespace kvlane
