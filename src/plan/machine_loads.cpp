// The tree of winners.
// SPDX-License-Identifier: Apache-2.0
#include "plan/machine_loads.h"

#include <bit>
#include <limits>

namespace kvlane {

void MachineLoads::reset(std::span<const std::int64_t> loads) {
  leaves_ = std::bit_ceil(loads.size());
  tree_.assign(2 * leaves_, {std::numeric_limits<std::int64_t>::max(), -1});
  for (std::size_t i = 0; i < loads.size(); ++i) {
    tree_[leaves_ + i] = {loads[i], static_cast<std::int32_t>(i)};
  }
  for (std::size_t node = leaves_ - 1; node > 0; --node) {
    const Machine& left = tree_[2 * node];
    const Machine& right = tree_[2 * node + 1];
    tree_[node] = right.load < left.load ? right : left;
  }
}

// The winner stays in registers, and no branch depends on who it is.
int MachineLoads::add_to_least(std::int64_t work) {
  const std::int32_t number = tree_[leaves_ > 1 ? 1 : leaves_].number;
  std::size_t node = leaves_ + number;
  std::int64_t load = tree_[node].load += work;
  std::int32_t winner = number;
  for (; node > 1; node /= 2) {
    const std::int64_t other_load = tree_[node ^ 1].load;
    const std::int32_t other = tree_[node ^ 1].number;
    const bool is_right = node % 2 != 0;  // then the other one wins if it has as much
    const bool loses = other_load < load + (is_right ? 1 : 0);
    load = loses ? other_load : load;
    winner = loses ? other : winner;
    tree_[node / 2] = {load, winner};
  }
  return number;
}

}  // namespace kvlane
