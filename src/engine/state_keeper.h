// An engine's ways to the state store: what saves, and what brings back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/block_pool.h"
#include "codec/codec.h"
#include "model/forward_pass.h"
#include "model/model.h"
#include "quant/kv_format.h"
#include "restore/hidden_gatherer.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"
#include "restore/state_forms.h"
#include "store/store.h"

namespace kvlane {

struct StateOptions {
  std::shared_ptr<Store> store;  // null: nothing is saved
  StateForms forms;              // what is saved; brought back is what is there
  std::string codec = "none";    // of slabs that take one
  // Of this machine's CPU; null: see decide_restore(). A device has none.
  std::shared_ptr<const MachineProfile> profile;
  std::size_t saving_bytes = std::size_t{256} << 20;  // of blocks that wait to be saved
  // On a device: of its memory, for what comes there past the host (Store::direct_storage()); and
  // whether the engine shall not begin without it.
  std::size_t direct_bytes = std::size_t{64} << 20;
  bool needs_direct = false;
  // Told at the engine's start, where it begins without although the store has a direct way: why.
  std::function<void(const Status&)> on_no_direct = {};
  // Where saving is behind, computing waits for it. Otherwise nobody waits, and some is not saved.
  bool saves_all = false;
};

// What must wait in memory for a prompt's hidden states not to be lost: the next pass is computed
// while those of the last one are gathered (ring), and blocks of a few passes while the disk takes
// them (drafts).
struct HiddenRoom {
  std::size_t ring_bytes;
  std::size_t draft_bytes;

  // rows: of the largest pass.
  static HiddenRoom of(const Model& model, int rows);
};

// The ways to the cache, where that is on a device: of the saver's thread, for SlabLanding, and
// from the disk directly; null: there is none.
struct StateLanes {
  SlabLane saving;
  SlabLane restoring;
  std::unique_ptr<DirectLanding> direct;
};

// For the engine's thread.
class StateKeeper {
 public:
  // `on_saved` and `wake` come on other threads, on_saved() not after the end of this. All others
  // outlive it. On a device `forward` keeps the layers whose hidden states are saved.
  static Result<std::unique_ptr<StateKeeper>> create(
      const Model& model, const BlockPool& pool, ForwardPass& forward, int pass_rows_max,
      const KvFormat* format, const StateOptions& options, const std::vector<Codebook>& codebooks,
      StateLanes lanes, std::function<void(BlockId)> on_saved, std::function<void()> wake);

  // Whether the store has all that would be saved of a block.
  bool holds(const BlockName& name) const;
  // False when saving is behind. Of a block that was taken the caller keeps the owner until
  // on_saved().
  bool save(const BlockToSave& block) { return slabs_ == nullptr || slabs_->add(block); }
  // Returns when what was given before is on the disk, or could not be saved. Any thread.
  void flush();
  // Tokens of the beginning that all of these blocks make, as far as they can be brought back. Any
  // thread.
  int stored_tokens(std::span<const BlockName> names) const;
  bool saves_slabs() const { return slabs_ != nullptr; }
  // Blocks whose slabs could not be saved.
  std::int64_t failed() const { return slabs_ ? slabs_->failed() : 0; }

  // Null: no layer's hidden states are saved.
  HiddenGatherer* hidden() { return hidden_.get(); }
  Restorer& restorer() { return *restorer_; }
  // Asks the store to have at hand what will be read for a sequence; see Restorer::find().
  void prefetch(std::span<const BlockName> names, int first, int tokens);

 private:
  StateKeeper(const KvShape& shape, const KvFormat* format, const StateOptions& options)
      : kind_(shape, format), store_(options.store), forms_(options.forms) {}

  const SlabKind kind_;
  const std::shared_ptr<Store> store_;
  const StateForms forms_;
  std::unique_ptr<Restorer> restorer_;
  std::unique_ptr<SlabSaver> slabs_;  // null: no layer's slabs are saved
  std::unique_ptr<HiddenGatherer> hidden_;
};

}  // namespace kvlane
