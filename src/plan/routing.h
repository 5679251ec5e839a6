// Which worker a request goes to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

namespace kvlane {

// What routing looks at in one worker.
struct WorkerLoad {
  bool failed = false;             // the last news of it was bad, which may be out of date
  std::int64_t queued_tokens = 0;  // prompt tokens it has yet to compute or to take in
  int requests = 0;                // running and queued
};

// The worker with the fewest queued tokens; then with the fewest requests; then the first at or
// after `turn`, so that equals take turns. Failed ones come last, excluded ones never.
std::optional<std::size_t> pick_worker(std::span<const WorkerLoad> workers,
                                       const std::set<std::size_t>& excluded, std::size_t turn);

}  // namespace kvlane
