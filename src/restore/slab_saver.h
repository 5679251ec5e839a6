// Slabs of complete blocks on their way from the cache to the store, on a thread of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/block_pool.h"
#include "restore/layer_runs.h"
#include "restore/slab_bodies.h"
#include "store/store.h"

namespace kvlane {

struct SlabSaverOptions {
  ModelIdentity model{};
  int layer_first = 0;  // slabs of these layers are saved, up to layer_last - 1
  int layer_last = 0;
  // Which of how many ranks of tensor parallelism has the pool's KV heads: spec/store.md,
  // section 3.
  int shards = 1;
  int shard = 0;
  std::size_t bytes_max = std::size_t{256} << 20;  // of slabs that wait
  // An extent has so many layers that it has as many bytes as this, if its block has as many.
  std::size_t extent_bytes_min = kExtentBytesWanted;
  std::vector<Codebook> codebooks;  // from calibration, or none
};

// A sealed block that keeps its owner until on_saved(): whose slabs are final.
struct BlockToSave {
  BlockId id;
  int index;  // in its sequence
  BlockName name;
  BlockName first;  // of the sequence's block 0
};

// Blocks wait in line where they are; nobody copies them for that. One thread encodes their slabs
// and hands them to the store, and waits where the store is behind.
class SlabSaver {
 public:
  // `on_saved` comes once for each block that add() took, on the saver's thread, when its slabs are
  // not read any more: the block may go. Pool, kind, codec and store outlive this, as does the
  // device that `lane` leads to, where the pool is on one.
  SlabSaver(const BlockPool& pool, const SlabKind& kind, const Codec& codec, Store& store,
            SlabSaverOptions options, std::function<void(BlockId)> on_saved, SlabLane lane = {});
  // Saves what waits, then ends.
  ~SlabSaver();
  SlabSaver(const SlabSaver&) = delete;
  SlabSaver& operator=(const SlabSaver&) = delete;

  // From one thread. False when too much waits: then nothing happens.
  bool add(const BlockToSave& block);
  // Returns when all that was added before is with the store. Any thread.
  void flush();
  // Blocks whose slabs the store did not take.
  std::int64_t failed() const { return *failed_; }

 private:
  void loop();
  Status save(const BlockToSave& block);
  Status save(const BlockToSave& block, const BlockKey& key, const LayerRun& run);

  const BlockPool& pool_;
  const SlabKind& kind_;
  Store& store_;
  const SlabSaverOptions options_;
  const std::function<void(BlockId)> on_saved_;
  SlabWriter writer_;
  std::vector<LayerRun> runs_;
  std::vector<std::byte> bodies_;  // of one extent

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<BlockToSave> queue_;
  std::condition_variable progress_;  // for flush()
  std::uint64_t added_ = 0;           // blocks, ever
  std::uint64_t done_ = 0;            // of these: their owner has heard of it
  std::uint64_t held_ = 0;            // of these: their slabs wait or are being read
  bool stop_ = false;
  // The store may tell after the end of this.
  const std::shared_ptr<std::atomic<std::int64_t>> failed_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  std::thread thread_;
};

}  // namespace kvlane
