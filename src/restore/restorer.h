// Sequences on their way back from the store: layer by layer, reads ahead of what is computed
// (HCache, section 4).
//
// A layer's slabs are decoded into their blocks, its hidden states projected to K and V, and the
// first layers may be computed from tokens again. Reads are begun in the order in which layers are
// wanted, as many as there are buffers for: hidden states first, which take time to compute, but in
// half of the buffers at most while there are slabs to read, so that reading never waits for
// computing. What has arrived is computed a piece at a time by whoever owns the job, between other
// work if it likes. Where the cache is on a device, slabs and hidden states go there, some slabs
// straight from the disk (restore/direct_landing.h), and are projected there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cache/block_pool.h"
#include "cpu/memory.h"
#include "model/forward_pass.h"
#include "model/model.h"
#include "restore/direct_landing.h"
#include "restore/hidden_landing.h"
#include "restore/layer_runs.h"
#include "restore/rank_rows.h"
#include "restore/restore_decision.h"
#include "restore/slab_bodies.h"
#include "restore/slab_landing.h"
#include "store/store.h"

namespace kvlane {

struct RestorerOptions {
  std::size_t buffer_bytes = std::size_t{64}
                             << 20;               // of one job's reads, at least those of a piece
  std::shared_ptr<const MachineProfile> profile;  // null: see decide_restore()
  bool lossy = false;                             // hidden:int8 may be used
  int pass_rows_max = kRestorePieceTokens;        // of a pass that computes from tokens
  // A rank of tensor parallelism has slabs of its own KV heads, those of its model and its cache:
  // spec/store.md, section 3. Hidden states are whole.
  int shards = 1;
  int shard = 0;
  // Of ranks that share hidden states (restore/rank_rows.h): those that each stores are projected
  // by all. Null: there are no others, or each has all.
  RankExchange* ranks = nullptr;
  // A rank of pipeline parallelism brings back its own layers, by a plan of their own, and reads
  // nothing of the others. Only the rank with layer 0 computes any from tokens. None: all layers.
  LayerRun layers{0, 0};
};

// What the store has of a sequence, pinned, and what is worth using of it.
struct FoundState {
  // Of the layers that come back. Of hidden states that ranks share, this rank's alone.
  StoredBlocks layers;
  RestoreDecision decision;
  bool stored = false;  // there is something of the sequence, though it may not be worth using
  // Extents of decision.blocks blocks from the first that was asked for, in the order of layers.
  struct Block {
    std::vector<PinnedExtent> hidden, slabs;
  };
  std::vector<Block> blocks;
};

class RestoreJob;

// What jobs share. Thread-compatible, as are its jobs: all of one owner.
class Restorer {
 public:
  // `forward` computes prefixes; `kind` is the cache's. All outlive this. `wake` is called on
  // threads of the store when a job has something to do again; it may be called after the end of
  // this. `lane`: see SlabLanding. `direct`: by which slabs come that need not pass through the
  // host; null: none do.
  Restorer(const Model& model, const SlabKind& kind, Store& store, ForwardPass& forward,
           RestorerOptions options, std::function<void()> wake, SlabLane lane = {},
           std::unique_ptr<DirectLanding> direct = nullptr);
  ~Restorer();

  // Looks for names[first], names[first + 1], ... of a sequence of `tokens` tokens, and decides.
  // `alone`: blocks before them will not be there, so nothing can be computed from tokens.
  // Changes nothing that is learned. Any thread.
  FoundState find(std::span<const BlockName> names, int first, int tokens, bool alone = false);

  // The same where somebody else has decided, for a group of ranks: `order` is for all layers of
  // the model, and of these for no more from tokens than layer 0. Fewer blocks than ordered are no
  // error here: they are lost when the job begins.
  FoundState find_ordered(std::span<const BlockName> names, int first, int tokens,
                          RestoreDecision order);

  // Asks the store to have at hand what find() finds. Any thread.
  void prefetch(std::span<const BlockName> names, int first, int tokens);

  // What was found is computed instead: nothing is learned from that, so a little of what was
  // learned is forgotten, or a machine that once was slow would never be tried again. Any thread.
  void forgo(const FoundState& found);

  // Begins to read. When the job first advances, `table` has tokens() = `first` blocks, blocks for
  // all that comes back and no window; from then on nobody else touches it. `tokens` are those of
  // the sequence from its start up to the last block that comes back, at least.
  Result<std::unique_ptr<RestoreJob>> begin(FoundState found, int first, BlockTable& table,
                                            std::span<const std::int32_t> tokens);

 private:
  friend class RestoreJob;
  FoundState look(std::span<const BlockName> names, int first, int tokens, bool alone);
  void learn(const RestoreJob& job);
  void take_factors(const ProfileFactors& factors);  // under the mutex
  Result<PageBuffer> take_buffer(std::size_t bytes);
  void give_back(PageBuffer buffer);

  const Model& model_;
  const SlabKind& kind_;
  Store& store_;
  ForwardPass& forward_;
  const RestorerOptions options_;
  const LayerRun layers_;  // that come back
  const std::function<void()> wake_;
  std::mutex mutex_;                              // for what is learned
  ProfileFactors factors_;                        // of the profile, by restores so far
  std::shared_ptr<const MachineProfile> scaled_;  // by them; null without a profile
  SlabLanding slab_landing_;
  HiddenLanding hidden_landing_;
  const std::unique_ptr<DirectLanding> direct_;
  std::optional<RankRows> rank_rows_;
  std::vector<PageBuffer> buffers_;  // that nobody uses
};

struct RestoreTimes {
  double total = 0;     // seconds from begin() until it was over
  RestoreSeconds busy;  // of it
  double bytes = 0;     // read
};

// A sequence on its way back, wherever that happens. May be given up at any time.
class SequenceRestore {
 public:
  virtual ~SequenceRestore() = default;

  enum class Progress {
    kWorked,   // a piece was computed, there may be more
    kWaiting,  // for reads: wake() will be called
    kOver,
  };
  // Computes one piece at most: kRestorePieceTokens tokens of one layer, or of the layers that come
  // from tokens.
  virtual Progress advance() = 0;

  // When it is over: the blocks that are back, from `first` on, complete in all layers, and sealed.
  // Fewer than were found when something could not be read or computed: status() says what. Then
  // the table may say that it has more tokens than that, and is to be cleared.
  virtual int blocks() const = 0;
  virtual const Status& status() const = 0;
  virtual const RestoreDecision& decision() const = 0;
  virtual const RestoreTimes& times() const = 0;
};

// One that this process brings back.
class RestoreJob final : public SequenceRestore {
 public:
  ~RestoreJob() override;

  Progress advance() override { return advance(0); }
  // The same of ranks that share hidden states. All of a stage are told the same numbers in the
  // same order, which never fall: so many pieces of shared rows may be projected from now on. No
  // more than rows_ready() of any of them.
  Progress advance(std::size_t rows_allowed);
  // Pieces of shared rows that were projected, or are here to be.
  std::size_t rows_ready() const;

  int blocks() const override { return blocks_; }
  const Status& status() const override { return status_; }
  const RestoreDecision& decision() const override { return found_.decision; }
  const RestoreTimes& times() const override { return times_; }

 private:
  friend class Restorer;
  struct Read;
  struct Unit;
  struct Arrivals;
  // Reads of one source in the order in which they are begun.
  struct Line {
    std::vector<std::size_t> reads;
    std::size_t next = 0;
    std::size_t buffers = 0;  // that these hold

    bool over() const { return next == reads.size(); }
  };
  RestoreJob(Restorer& restorer, FoundState found, int first, BlockTable& table,
             std::span<const std::int32_t> tokens);

  Status plan_reads();
  void add_reads(const std::vector<PinnedExtent>& extents, RestoreSource source, int block);
  void add_units();
  void add_shared();
  LayerRun layers_to_read() const;
  bool is_elsewhere(const Unit& unit) const;
  Line& line_of(const Read& read);
  Line* next_line();
  Status begin_reads(bool beyond_budget);
  void take_arrivals();
  void arrive(const Read& read);
  void lose(int block, const Status& why);
  Result<ExtentRead> memory_for(std::size_t number);
  void compute(const Unit& unit);
  void decode(const Unit& unit, int blocks);
  Status land_stored(const Unit& unit, std::span<const int> which, std::span<Status> verdicts);
  Status land_arrived(const Unit& unit, std::span<const int> which, std::span<Status> verdicts);
  bool is_direct(const Read& read) const;
  void project(const Unit& unit, int blocks);
  void project_shared(const Unit& unit);
  ByteView stored_bytes(const Read& read, int layer) const;
  void release(Read& read);
  void recompute_piece();
  Status embed_piece(int first, std::span<const std::int32_t> tokens);
  Progress end();
  Status finish_landing();

  Restorer& restorer_;
  FoundState found_;
  const int first_;  // block
  BlockTable& table_;
  const std::vector<std::int32_t> tokens_;
  const TimePoint begun_;

  std::vector<Read> reads_;  // layer by layer
  Line hidden_, slabs_;
  std::vector<Unit> units_;  // layer by layer, piece by piece
  std::deque<int> ready_;    // units whose reads have arrived, the next one first
  std::vector<int> shared_;  // units whose rows ranks share, in the order in which they do
  std::size_t shared_done_ = 0;
  int under_way_ = 0;
  std::size_t from_memory_ = 0;  // reads that no disk was asked for
  std::size_t buffer_each_ = 0;  // bytes
  std::size_t buffers_max_ = 0;
  std::shared_ptr<Arrivals> arrivals_;
  const std::uint64_t slabs_before_, hidden_before_;  // pieces of others
  int recomputed_tokens_ = 0;
  int blocks_ = 0;
  bool over_ = false;
  Status status_;
  RestoreTimes times_;
};

}  // namespace kvlane
