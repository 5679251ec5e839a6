// The binary heap of machines.
// SPDX-License-Identifier: Apache-2.0
#include "plan/machine_loads.h"

#include <algorithm>

namespace kvlane {

bool MachineLoads::after(const Machine& a, const Machine& b) {
  return a.load > b.load || (a.load == b.load && a.number > b.number);
}

void MachineLoads::reset(std::span<const std::int64_t> loads) {
  heap_.clear();
  for (const std::int64_t load : loads) {
    heap_.push_back({load, static_cast<std::int32_t>(heap_.size())});
  }
  std::make_heap(heap_.begin(), heap_.end(), after);
}

// The top grows and sinks: one way down, where taking it out and putting it back would be two.
int MachineLoads::add_to_least(std::int64_t work) {
  const Machine grown = {heap_[0].load + work, heap_[0].number};
  std::size_t at = 0;
  for (std::size_t child = 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && after(heap_[child], heap_[child + 1])) ++child;
    if (!after(grown, heap_[child])) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = grown;
  return grown.number;
}

}  // namespace kvlane
