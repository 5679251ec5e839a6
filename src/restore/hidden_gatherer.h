// Saves hidden states of sequences while they are computed, in two stages (HCache, section 4.2).
//
// The engine's thread copies rows of a pass into a ring and goes on; where the model is on a device
// it has them copied, on a lane beside the passes. A thread of the gatherer takes them out, layer
// by layer as they came, into drafts of extents, where each block has its rows of a layer side by
// side; a draft is put when its block is complete. So a row is copied twice, and nobody who
// computes waits: where the ring is full or drafts are short, the sequence is not saved from there
// on, and is computed again when it comes back. Unless saving is what one computes for: see
// HiddenGathererOptions::waits. Bytes: spec/store.md, section 5.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "cpu/memory.h"
#include "format/block_name.h"
#include "format/extent.h"
#include "gpu/device.h"
#include "kvlane/status.h"
#include "model/accelerator.h"
#include "model/forward_pass.h"
#include "model/hidden_rows.h"
#include "model/model.h"
#include "restore/layer_runs.h"
#include "store/store.h"

namespace kvlane {

struct HiddenGathererOptions {
  HiddenFormat format;
  // Layers layer_first ... layer_last - 1 are saved. Layer 0 need not be: its hidden states are
  // embeddings.
  int layer_first = 1;
  int layer_last = 0;
  // For rows that are copied and not gathered yet. A pass is over sooner than its rows are
  // gathered: there should be room for all rows of two passes in all of these layers.
  std::size_t ring_bytes = std::size_t{64} << 20;
  // copy() and fetch() wait for room in the ring, and the gatherer's thread for drafts.
  bool waits = false;
  // An extent has so many layers that it has as many bytes as this, if its block has as many.
  std::size_t extent_bytes_min = kExtentBytesWanted;
};

// Since the gatherer was made.
struct HiddenGathererFigures {
  std::uint64_t rows = 0;  // copied, of all layers
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;       // on the disk with all their layers
  std::uint64_t tokens_lost = 0;  // of blocks that complete() was told of, but that are not saved
  std::uint64_t ring_bytes_used_max = 0;
  double copy_seconds = 0;  // that copy() or fetch() took
};

// One sequence's rows on their way. Made by HiddenGatherer::begin(), or where ranks save them by
// whoever asks them to: then it stands for a number that they know.
class SavedRows : public std::enable_shared_from_this<SavedRows> {
 public:
  explicit SavedRows(std::uint64_t number = 0) : number_(number) {}

  std::uint64_t number() const { return number_; }
  // Whether rows were lost; then no later block of these is saved. Any thread.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  friend class HiddenGatherer;
  struct OpenBlock {
    std::vector<std::optional<ExtentDraft>> drafts;  // one an extent
    std::vector<int> rows;                           // gathered so far, of each layer
  };

  const std::uint64_t number_;
  std::atomic<bool> lost_ = false;
  // Of the gatherer's thread.
  bool dropped_ = false;
  std::map<int, OpenBlock> open_;
};

// Rows of one sequence in a pass: `count` from `row` on, of tokens from `position` on.
struct PassRows {
  SavedRows* saved;
  int position;
  int row;
  int count;
};

// begin(), copy(), fetch(), complete() and end() are the engine's thread's; none of them waits for
// a disk or for the gatherer, if the options do not say so. What else there is may be called from
// any thread.
class HiddenGatherer {
 public:
  // Store and model outlive this, as does the model's device. kInvalidArgument when there are no
  // such layers, or the ring has no room for a row; kExhausted when there is no memory for the
  // ring, and what a device says that refuses it or a lane.
  static Result<std::unique_ptr<HiddenGatherer>> create(Store& store, const Model& model,
                                                        const HiddenGathererOptions& options);
  // Gathers what was copied and puts the blocks that are complete; drops the others.
  ~HiddenGatherer();
  HiddenGatherer(const HiddenGatherer&) = delete;
  HiddenGatherer& operator=(const HiddenGatherer&) = delete;

  // For a sequence whose next token begins a block.
  std::shared_ptr<SavedRows> begin();

  // Takes the rows of one layer of a pass, as PassHooks::on_normed shows them: `normed` is
  // [rows of the pass][hidden]. Layers that are not saved are ignored. Tokens of a sequence come in
  // order, each once; those of `rows` that are lost are skipped.
  void copy(int layer, std::span<const PassRows> rows, ByteView normed);

  // The same on a device: rows as PassHooks::on_kept shows them, `rows` with the first ones of
  // `kept`, in their order. What comes back is its answer. A device that refuses loses rows.
  std::shared_ptr<const DeviceMark> fetch(std::span<const PassRows> rows, const KeptRows& kept);

  // All layers of this block were copied, and it has its name: it is put, unless a row of it is
  // missing. `first_name`: of the sequence's block 0. Also to be told of blocks of rows that are
  // lost, which counts them.
  void complete(SavedRows& saved, int block, const BlockName& name, const BlockName& first_name);

  // No more rows will come: drops what is incomplete.
  void end(SavedRows& saved);

  // Returns when the blocks that were complete before are gathered and put.
  void flush();

  HiddenGathererFigures figures() const;

 private:
  // What the thread is to do, in order.
  struct Rows {
    std::shared_ptr<SavedRows> saved;
    int layer;
    int position;
    int count;
    std::size_t slot;                         // of the first row, in the ring; the others follow
    std::shared_ptr<const DeviceMark> there;  // of the lane; null: they are
  };
  struct Complete {
    std::shared_ptr<SavedRows> saved;
    int block;
    BlockName name;
    BlockName first_name;
  };
  struct Drop {
    std::shared_ptr<SavedRows> saved;
  };
  using Work = std::variant<Rows, Complete, Drop>;

  // Shared with puts that are under way, which may outlive the gatherer.
  struct Counters {
    std::atomic<std::uint64_t> rows = 0;
    std::atomic<std::uint64_t> blocks = 0;
    std::atomic<std::uint64_t> tokens_lost = 0;
    std::atomic<std::uint64_t> ring_rows_max = 0;
    std::atomic<std::int64_t> copy_nanoseconds = 0;
  };

  class CopyTimer;

  HiddenGatherer(Store& store, const Model& model, const HiddenGathererOptions& options);

  Status cut_extents();
  Status open_ring();
  void take(int layer, std::span<const PassRows> rows, const std::byte* normed);
  bool take_slots(int layer, const PassRows& rows, const std::byte* normed);
  Status move();
  void send();
  void post();
  void run();
  void perform(Work& work);
  void gather(const Rows& rows);
  Result<ExtentDraft> draft(const ExtentHead& head);
  Result<std::vector<ExtentDraft>> lacking(SavedRows::OpenBlock& block, const BlockName& name);
  Result<ExtentDraft> part_of(const ExtentDraft& whole, LayerRun layers);
  Status gather_part(const Rows& rows, int done, int count);
  void put(const Complete& complete);
  static void drop(SavedRows& saved);

  Store& store_;
  const Model& model_;
  const HiddenGathererOptions options_;
  const std::size_t row_bytes_;
  const std::size_t ring_rows_;
  const int directories_;
  std::unique_ptr<DeviceLane> lane_;  // null: rows are in memory of the host
  PageBuffer host_ring_;              // one of these two
  Accelerator::Memory pinned_ring_;
  std::byte* ring_ = nullptr;
  std::vector<ExtentHead> extents_;  // of a block, without name and position
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();

  // Of the engine's thread: rows that ever went into the ring, what of them is still to be copied
  // there, and work that is not posted yet, from `sent_` on with rows that are not on their way.
  std::uint64_t taken_ = 0;
  std::uint64_t posted_ = 0;  // of these, what the thread knows of
  std::vector<RowsCopy> copies_;
  std::vector<Work> told_;
  std::size_t sent_ = 0;
  Status waited_;                                // for the device's mark of these rows
  std::shared_ptr<const DeviceMark> last_sent_;  // where the lane ends

  std::atomic<std::uint64_t> given_back_ = 0;  // rows that ever left the ring

  std::mutex mutex_;
  std::condition_variable changed_;  // for the thread
  std::condition_variable idle_;     // for flush()
  std::vector<Work> queue_;
  bool working_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace kvlane
