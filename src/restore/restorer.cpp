// What the store has, and the buffers of reads.
// SPDX-License-Identifier: Apache-2.0
#include "restore/restorer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "restore/hidden_extents.h"

namespace kvlane {
namespace {

// Those of one layer, over all blocks so far.
void count_layer(StoredLayer& layer, int block, const PinnedExtent& extent, int number,
                 std::string form) {
  const ExtentHead& head = extent.head();
  // In a row, and all in one form.
  if (layer.blocks != block || (block > 0 && layer.form != form)) return;
  const auto bytes = static_cast<double>(head.parts[number - head.layer].padded_bytes());
  layer.bytes = (layer.bytes * layer.blocks + bytes) / (layer.blocks + 1);
  layer.form = std::move(form);
  ++layer.blocks;
}

}  // namespace

Restorer::Restorer(const Model& model, const SlabKind& kind, Store& store, ForwardPass& forward,
                   RestorerOptions options, std::function<void()> wake, SlabLane lane,
                   std::unique_ptr<DirectLanding> direct)
    : model_(model),
      kind_(kind),
      store_(store),
      forward_(forward),
      options_(std::move(options)),
      layers_(options_.layers.count > 0 ? options_.layers : LayerRun{0, kind.shape().layers}),
      wake_(std::move(wake)),
      scaled_(options_.profile),
      slab_landing_(kind, model.isa(), std::move(lane)),
      hidden_landing_(model, kind.format()),
      direct_(std::move(direct)) {
  if (options_.ranks != nullptr) rank_rows_.emplace(model, *options_.ranks);
}

Restorer::~Restorer() = default;

FoundState Restorer::find(std::span<const BlockName> names, int first, int tokens, bool alone) {
  FoundState found = look(names, first, tokens, alone);
  {
    const std::lock_guard guard(mutex_);
    found.decision = decide_restore(scaled_.get(), found.layers, tokens);
  }
  // Of layers before those that come back.
  found.decision.sources.insert(found.decision.sources.begin(), layers_.first, {});
  found.blocks.resize(std::min<std::size_t>(found.blocks.size(), found.decision.blocks));
  return found;
}

FoundState Restorer::find_ordered(std::span<const BlockName> names, int first, int tokens,
                                  RestoreDecision order) {
  FoundState found = look(names, first, tokens, false);
  // Who has the first layer computes it; the others wait for nobody.
  if (layers_.first > 0) order.recomputed = 0;
  found.decision = std::move(order);
  found.blocks.resize(std::min<std::size_t>(found.blocks.size(), found.decision.blocks));
  return found;
}

// All but the decision.
FoundState Restorer::look(std::span<const BlockName> names, int first, int tokens, bool alone) {
  const std::vector<StoredLayer> nothing(layers_.count);
  FoundState found;
  StoredBlocks& stored = found.layers;
  stored = {first, nothing, nothing, layers_.first == 0 && !alone};
  const auto count = [&](std::vector<StoredLayer>& layers, int block, const PinnedExtent& extent,
                         const std::string& form) {
    const ExtentHead& head = extent.head();
    const int begin = std::max(head.layer, layers_.first);
    const int end = std::min(head.layer + head.layers(), layers_.first + layers_.count);
    for (int layer = begin; layer < end; ++layer) {
      count_layer(layers[layer - layers_.first], block - first, extent, layer, form);
    }
    return begin < end;
  };
  const int last = std::min(static_cast<int>(names.size()), (tokens - 1) / kBlockTokens);
  for (int block = first; block < last; ++block) {
    FoundState::Block there;
    for (PinnedExtent& extent : store_.find({.name = names[block],
                                .kind = ExtentKind::kKv,
                                .shards = options_.shards,
                                .shard = options_.shard})) {
      const ExtentHead& head = extent.head();
      if (!kind_.is_of(head)) continue;
      const std::string form = kind_.format() != nullptr ? head.format
                               : head.codec == "none"    ? "kv"
                                                         : "kv+" + head.codec;
      if (count(stored.slabs, block, extent, form)) there.slabs.push_back(std::move(extent));
    }
    for (PinnedExtent& extent : store_.find({.name = names[block], .kind = ExtentKind::kHidden})) {
      const ExtentHead& head = extent.head();
      const std::optional<HiddenFormat> format = stored_hidden_format(head, model_);
      if (!format || (!options_.lossy && !format->exact())) continue;
      if (count(stored.hidden, block, extent, std::string(format->name()))) {
        there.hidden.push_back(std::move(extent));
      }
    }
    if (there.slabs.empty() && there.hidden.empty()) break;
    found.blocks.push_back(std::move(there));
  }
  found.stored = !found.blocks.empty();
  return found;
}

void Restorer::prefetch(std::span<const BlockName> names, int first, int tokens) {
  // Of a stage that ranks share one alone cannot tell what will come back.
  FoundState found =
      options_.ranks != nullptr ? look(names, first, tokens, false) : find(names, first, tokens);
  std::vector<PinnedExtent> wanted;
  for (FoundState::Block& block : found.blocks) {
    for (auto* extents : {&block.hidden, &block.slabs}) {
      std::move(extents->begin(), extents->end(), std::back_inserter(wanted));
    }
  }
  if (!wanted.empty()) store_.prefetch(std::move(wanted));
}

// From a job that is over. Of short ones the beginning and the end are too large a part. What came
// from memory says nothing about disks, and how long the rest took does not say how fast they are.
void Restorer::learn(const RestoreJob& job) {
  const RestoreDecision& decision = job.decision();
  if (decision.blocks * kBlockTokens < kRestorePieceTokens) return;
  RestoreSeconds measured = job.times().busy;
  if (job.from_memory_ > 0) measured.read = 0;
  const std::lock_guard guard(mutex_);
  take_factors(learned(factors_, decision.expected, measured, job.times().total));
}

void Restorer::forgo(const FoundState& found) {
  if (!found.stored || found.decision.blocks > 0) return;
  const std::lock_guard guard(mutex_);
  take_factors(relaxed(factors_));
}

void Restorer::take_factors(const ProfileFactors& factors) {
  if (scaled_ == nullptr || factors == factors_) return;
  factors_ = factors;
  scaled_ = std::make_shared<const MachineProfile>(scaled(*options_.profile, factors));
}

Result<std::unique_ptr<RestoreJob>> Restorer::begin(FoundState found, int first, BlockTable& table,
                                                    std::span<const std::int32_t> tokens) {
  std::unique_ptr<RestoreJob> job(new RestoreJob(*this, std::move(found), first, table, tokens));
  KVLANE_TRY(job->plan_reads());
  return job;
}

Result<PageBuffer> Restorer::take_buffer(std::size_t bytes) {
  const auto fits = std::find_if(buffers_.begin(), buffers_.end(),
                                 [&](const PageBuffer& one) { return one.bytes() >= bytes; });
  if (fits == buffers_.end()) {
    // Others are of a size that is no longer wanted.
    if (!buffers_.empty()) buffers_.pop_back();
    return PageBuffer::allocate(bytes);
  }
  PageBuffer buffer = std::move(*fits);
  std::swap(*fits, buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void Restorer::give_back(PageBuffer buffer) { buffers_.push_back(std::move(buffer)); }

}  // namespace kvlane
