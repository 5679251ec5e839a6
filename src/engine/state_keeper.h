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

namespace kvlane {

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
