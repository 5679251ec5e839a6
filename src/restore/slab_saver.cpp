// One block after the other, an extent at a time.
// SPDX-License-Identifier: Apache-2.0
#include "restore/slab_saver.h"

#include <cstring>
#include <string>
#include <utility>

#include "cpu/background.h"
#include "restore/missing_layers.h"

namespace kvlane {

SlabSaver::SlabSaver(const BlockPool& pool, const SlabKind& kind, const Codec& codec, Store& store,
                     SlabSaverOptions options, std::function<void(BlockId)> on_saved, SlabLane lane)
    : pool_(pool),
      kind_(kind),
      store_(store),
      options_(std::move(options)),
      on_saved_(std::move(on_saved)),
      writer_(kind, codec, options_.codebooks, std::move(lane)) {
  std::vector<std::size_t> bytes;
  for (int layer = options_.layer_first; layer < options_.layer_last; ++layer) {
    bytes.push_back(kind.slab_bytes(layer));
  }
  runs_ = layer_runs(options_.layer_first, bytes, options_.extent_bytes_min);
  thread_ = std::thread([this] {
    work_in_background();
    loop();
  });
}

SlabSaver::~SlabSaver() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool SlabSaver::add(const BlockToSave& block) {
  {
    const std::lock_guard lock(mutex_);
    // A single block always gets in.
    if (held_ > 0 && (held_ + 1) * pool_.block_bytes() > options_.bytes_max) return false;
    ++held_;
    ++added_;
    queue_.push_back(block);
  }
  wake_.notify_one();
  return true;
}

void SlabSaver::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const BlockToSave block = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (!save(block).ok()) ++*failed_;
    lock.lock();
    --held_;  // before its owner hears that it may go, who may come with the next at once
    lock.unlock();
    on_saved_(block.id);
    lock.lock();
    ++done_;
    progress_.notify_all();
  }
}

void SlabSaver::flush() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this, last = added_] { return done_ >= last; });
}

Status SlabSaver::save(const BlockToSave& block) {
  const BlockKey key{.name = block.name,
                     .kind = ExtentKind::kKv,
                     .shards = options_.shards,
                     .shard = options_.shard};
  for (const LayerRun& run : runs_) {
    for (const LayerRun& missing : missing_layers(store_, key, run)) {
      KVLANE_TRY(save(block, key, missing));
    }
  }
  return {};
}

Status SlabSaver::save(const BlockToSave& block, const BlockKey& key, const LayerRun& run) {
  ExtentHead head;
  head.key = key;
  kind_.describe(head);
  head.model = options_.model;
  head.codec = writer_.codec_name();
  head.layer = run.first;
  head.position = std::int64_t{block.index} * kBlockTokens;
  bodies_.clear();
  KVLANE_TRY(writer_.write(pool_, block.id, block.index, run, [&](const CodedSlab& body) {
    head.parts.push_back({.k_bytes = static_cast<std::uint32_t>(body.k.size()),
                          .v_bytes = static_cast<std::uint32_t>(body.v.size())});
    bodies_.insert(bodies_.end(), body.k.begin(), body.k.end());
    bodies_.insert(bodies_.end(), body.v.begin(), body.v.end());
  }));
  // Others lose nothing by that.
  KVLANE_ASSIGN(ExtentDraft extent, store_.wait_for_draft(head));
  const std::byte* from = bodies_.data();
  for (int part = 0; part < run.count; ++part) {
    const std::span<std::byte> to = extent.part(part);
    std::memcpy(to.data(), from, to.size());
    from += to.size();
  }
  store_.put(std::move(extent),
             extent_directory(block.first, run.first, block.index, store_.directories()),
             [failed = failed_](const Status& status) {
               if (!status.ok()) ++*failed;
             });
  return {};
}

}  // namespace kvlane
