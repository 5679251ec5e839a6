// Machines by what they have to do, the least loaded one at hand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlane {

// A heap. Thread-compatible; keeps its memory between calls of reset().
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
  static bool after(const Machine& a, const Machine& b);

  std::vector<Machine> heap_;  // machine 0 is the least; those of i are 2i + 1 and 2i + 2
};

}  // namespace kvlane
