// Machines by what they have to do, the least loaded one at hand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlane {

// A tree of winners: each node has the less loaded of two machines, of equal ones the left one,
// whose number is lower. What a change has to compare with is known before it is made, so it takes
// half the time of a heap's. Thread-compatible; keeps its memory between calls of reset().
class MachineLoads {
 public:
  // Machine i begins with loads[i]; at least one machine.
  void reset(std::span<const std::int64_t> loads);
  // Gives `work` to the least loaded machine, of equal ones to that of the lowest number, and says
  // which one that was.
  int add_to_least(std::int64_t work);

 private:
  struct Machine {
    std::int64_t load;
    std::int32_t number;
  };
  std::size_t leaves_ = 0;     // a power of two; those that are no machine never win
  std::vector<Machine> tree_;  // [2 * leaves_]: the winner is 1, those of node i are 2i and 2i + 1
};

}  // namespace kvlane
