// Ranks of workers.
// SPDX-License-Identifier: Apache-2.0
#include "plan/routing.h"

#include <tuple>

namespace kvlane {

std::optional<std::size_t> pick_worker(std::span<const WorkerLoad> workers,
                                       const std::set<std::size_t>& excluded, std::size_t turn) {
  const auto rank = [&](std::size_t index) {
    const WorkerLoad& worker = workers[index];
    return std::tuple(worker.failed, worker.queued_tokens, worker.requests);
  };
  std::optional<std::size_t> best;
  for (std::size_t step = 0; step < workers.size(); ++step) {
    const std::size_t index = (turn + step) % workers.size();
    if (excluded.contains(index)) continue;
    if (!best || rank(index) < rank(*best)) best = index;
  }
  return best;
}

}  // namespace kvlane
