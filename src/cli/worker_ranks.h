// The processes that compute a model together, as the command line asks for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "cli/child_process.h"
#include "cli/flags.h"
#include "ranks/rank_group.h"

namespace kvlane {

inline bool has_ranks(const ModelFlags& flags) {
  return flags.tensor_parallel * flags.pipeline_parallel > 1;
}

// What ranks do not do. Ok for flags that ask for none.
Status check_ranks(const ModelFlags& flags);

// The group's key, which somebody has to set where ranks are not started here.
Result<TransferId> ranks_key(const ModelFlags& flags);

// The group, and its processes, if they were started here. They end with it.
class WorkerRanks {
 public:
  // Starts a process for each rank, or listens where --ranks-bind says and lets somebody else do
  // it. Ranks load their weights meanwhile.
  static Result<std::unique_ptr<WorkerRanks>> start(const ModelFlags& flags);
  ~WorkerRanks();
  WorkerRanks(const WorkerRanks&) = delete;
  WorkerRanks& operator=(const WorkerRanks&) = delete;

  RankGroup& group() { return *group_; }
  // Becomes readable when a rank has gone; then lost() says which.
  int descriptor() const { return descriptor_; }
  Status lost() const { return group_->lost(); }

 private:
  WorkerRanks() = default;
  Status start_processes(const ModelFlags& flags, const std::string& key);
  Status alive() const;

  int descriptor_ = -1;
  std::vector<ChildProcess> processes_;
  std::unique_ptr<RankGroup> group_;
};

}  // namespace kvlane
