// An engine's ways to the state store: what saves, and what brings back. In this process
// (engine/local_state.h), or in the ranks that have the cache (engine/ranked_state.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cache/block_pool.h"
#include "model/forward_pass.h"
#include "restore/hidden_gatherer.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"
#include "restore/state_forms.h"
#include "store/store.h"

namespace kvlane {

struct StateOptions {
  std::shared_ptr<Store> store;  // null: nothing is saved here
  bool on_ranks = false;         // those that compute the model have stores of their own
  StateForms forms;              // what is saved; brought back is what is there
  std::string codec = "none";    // of slabs that take one
  // Of this machine's CPU; null: see decide_restore(). A device has none, nor have ranks.
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

  bool saves() const { return store != nullptr || on_ranks; }
  // What names of blocks and handshakes say behind the KV format where K and V may have come back
  // from hidden states in 8 bits, else nothing: others would take them for exact.
  std::string lossy_mark() const {
    const bool lossy =
        saves() && forms.saves_hidden() && forms.hidden == HiddenFormat::Values::kInt8;
    return lossy ? "+hidden:int8" : "";
  }
};

// For the engine's thread.
class StateKeeper {
 public:
  virtual ~StateKeeper() = default;

  virtual bool saves_slabs() const = 0;
  // Whether the store has all slabs that would be saved of a block, as far as is known.
  virtual bool holds(const BlockName& name) const = 0;
  // False when saving is behind. Of a block that was taken the caller keeps the owner until
  // on_saved().
  virtual bool save(const BlockToSave& block) = 0;
  // Blocks whose slabs could not be saved.
  virtual std::int64_t failed() const = 0;

  virtual bool saves_hidden() const = 0;
  // As those of HiddenGatherer. Rows that ranks save are not shown here.
  virtual std::shared_ptr<SavedRows> begin_hidden() = 0;
  virtual void copy_hidden(int layer, std::span<const PassRows> rows, ByteView normed) = 0;
  virtual std::shared_ptr<const DeviceMark> fetch_hidden(std::span<const PassRows> rows,
                                                         const KeptRows& kept) = 0;
  virtual void complete_hidden(SavedRows& saved, int block, const BlockName& name,
                               const BlockName& first_name) = 0;
  virtual void end_hidden(SavedRows& saved) = 0;
  virtual std::int64_t hidden_tokens_lost() const = 0;

  // As those of Restorer.
  virtual FoundState find(std::span<const BlockName> names, int first, int tokens,
                          bool alone = false) = 0;
  virtual void forgo(const FoundState& found) = 0;
  virtual Result<std::unique_ptr<SequenceRestore>> begin(FoundState found,
                                                         std::span<const BlockName> names,
                                                         int first, BlockTable& table,
                                                         std::span<const std::int32_t> tokens) = 0;
  // Asks the store to have at hand what will be read for a sequence; see Restorer::find().
  virtual void prefetch(std::span<const BlockName> names, int first, int tokens) = 0;

  // Tokens of the beginning that all of these blocks make, as far as they can be brought back. Any
  // thread.
  virtual int stored_tokens(std::span<const BlockName> names) = 0;
  // Returns when what was given before is on the disk, or could not be saved. Any thread.
  virtual void flush() = 0;
};

}  // namespace kvlane
