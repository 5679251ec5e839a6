// Routing: who is picked, who never is, and how a burst spreads.
// SPDX-License-Identifier: Apache-2.0
#include "plan/routing.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlane {
namespace {

TEST(PickWorker, FewestQueuedTokensThenFewestRequests) {
  std::vector<WorkerLoad> workers(3);
  workers[0].queued_tokens = 10;
  workers[1].queued_tokens = 5;
  workers[2].queued_tokens = 6;
  EXPECT_EQ(pick_worker(workers, {}, 0), 1U);
  workers[1].requests = 1000;
  EXPECT_EQ(pick_worker(workers, {}, 0), 1U) << "requests count only between equals";
  workers[2].queued_tokens = 5;
  EXPECT_EQ(pick_worker(workers, {}, 0), 2U);
}

TEST(PickWorker, EqualsTakeTurns) {
  const std::vector<WorkerLoad> workers(3);
  for (std::size_t turn = 0; turn < 7; ++turn) EXPECT_EQ(pick_worker(workers, {}, turn), turn % 3);
}

TEST(PickWorker, FailedOnesComeLast) {
  std::vector<WorkerLoad> workers(3);
  workers[0].queued_tokens = 1'000'000;
  workers[1].failed = true;
  workers[2].failed = true;
  workers[2].requests = 1;
  EXPECT_EQ(pick_worker(workers, {}, 1), 0U);
  EXPECT_EQ(pick_worker(workers, {0}, 2), 1U) << "a failed one is better than none";
}

TEST(PickWorker, ExcludedOnesNever) {
  const std::vector<WorkerLoad> workers(3);
  EXPECT_EQ(pick_worker(workers, {1}, 1), 2U);
  EXPECT_EQ(pick_worker(workers, {0, 1, 2}, 0), std::nullopt);
  EXPECT_EQ(pick_worker(workers, {7}, 0), 0U);
  EXPECT_EQ(pick_worker({}, {}, 0), std::nullopt);
}

// As a gateway does: what it sends is counted at once.
TEST(PickWorker, ABurstOfUnequalRequestsSpreadsEvenly) {
  std::vector<WorkerLoad> workers(4);
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::int64_t tokens = 1 + i * i % 977;
    const auto picked = pick_worker(workers, {}, static_cast<std::size_t>(i));
    ASSERT_TRUE(picked.has_value());
    workers[*picked].queued_tokens += tokens;
    total += tokens;
    longest = std::max(longest, tokens);
  }
  // Whoever is longest was shortest before its last request.
  for (const WorkerLoad& worker : workers) {
    EXPECT_LE(worker.queued_tokens, total / 4 + longest);
  }
}

}  // namespace
}  // namespace kvlane
