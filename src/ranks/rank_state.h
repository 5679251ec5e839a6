// The state store of one rank: its part of what is saved, and its part of what comes back
// (spec/ranks.md section 6).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "codec/codec.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/rank_exchange.h"
#include "quant/kv_format.h"
#include "ranks/letter.h"
#include "ranks/rank_cache.h"
#include "ranks/state_letter.h"
#include "restore/hidden_gatherer.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"
#include "store/store.h"

namespace kvlane {

// What a rank computes with; all outlive its state.
struct RankStateParts {
  const Model& model;
  RankCache& cache;
  Forward& forward;
  const KvFormat* format;  // of its heads; null: rows of 16 bits
  RankExchange* exchange;  // with other ranks; null: there are none
  std::shared_ptr<Store> store;
};

class RankState {
 public:
  // To the head, on any thread.
  using Tell = std::function<Status(ByteView letter)>;

  static Result<std::unique_ptr<RankState>> open(RankStateParts parts, const Plan& plan, Tell tell);
  // Saves what it was given.
  ~RankState();

  // The thread of orders: SAVE, FIND, PREFETCH.
  Status carry_out(LetterKind kind, ByteView letter);

  // The computing thread: RESTORE, ADVANCE, FORGET, COMPLETE, END_ROWS, FLUSH.
  Status compute(LetterKind kind, ByteView letter);
  // Before a pass: whose rows of it are saved. True when there are any; then copy() is to be told
  // of each layer what PassHooks::on_normed shows.
  bool begin_pass(const Pass& pass);
  void copy(int layer, ByteView normed);

  // Since it began.
  std::uint64_t save_failures() const;
  std::uint64_t hidden_tokens_lost() const;

 private:
  struct Job {
    BlockTable table;
    std::unique_ptr<RestoreJob> job;  // null: it could not begin
    Status failed;
  };

  RankState(RankStateParts parts, const Plan& plan, Tell tell);
  // A rank whose slabs have all heads stores them whole.
  int shards() const;
  int shard() const;
  // From hidden states and tokens: K and V of its own heads are all that its slabs have.
  bool makes_slabs() const { return shards() == parts_.model.part().ranks; }
  Status open_savers(const StatePlan& plan, int rows_max);

  Status save(const SaveOrder& order);
  void on_saved(BlockId block);
  Status find(const FindOrder& order);
  Status restore(RestoreOrder order);
  Result<std::unique_ptr<Job>> begin(RestoreOrder order);
  Status advance(const AdvanceOrder& order);
  void complete(const CompleteOrder& order);
  void end_rows(std::uint64_t stream);
  void flush();

  RankStateParts parts_;
  const Tell tell_;
  const SlabKind kind_;
  std::atomic<bool> wake_told_ = false;
  std::unique_ptr<Restorer> restorer_;
  std::mutex mutex_;
  std::map<BlockId, std::deque<std::uint64_t>> saving_;  // requests
  std::unique_ptr<SlabSaver> slabs_;                     // null: no slabs of its layers are saved
  std::unique_ptr<HiddenGatherer> hidden_;               // null: no hidden states of its share are

  // The computing thread.
  std::map<std::uint64_t, std::unique_ptr<Job>> jobs_;
  std::map<std::uint64_t, std::shared_ptr<SavedRows>> streams_;
  std::vector<PassRows> saved_rows_;  // of the pass
};

}  // namespace kvlane
