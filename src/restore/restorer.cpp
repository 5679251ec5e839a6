// What the store has, and the buffers of reads.
// SPDX-License-Identifier: Apache-2.0
#include "restore/restorer.h"

#include <algorithm>
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
                   RestorerOptions options, std::function<void()> wake)
    : model_(model),
      kind_(kind),
      store_(store),
      forward_(forward),
      options_(std::move(options)),
      wake_(std::move(wake)),
      scaled_(options_.profile) {}

Restorer::~Restorer() = default;

FoundState Restorer::find(std::span<const BlockName> names, int first, int tokens) {
  const int layers = kind_.shape().layers;
  StoredBlocks stored{first, std::vector<StoredLayer>(layers), std::vector<StoredLayer>(layers)};
  FoundState found;
  const int last = std::min(static_cast<int>(names.size()), (tokens - 1) / kBlockTokens);
  for (int block = first; block < last; ++block) {
    FoundState::Block there;
    for (PinnedExtent& extent : store_.find({.name = names[block], .kind = ExtentKind::kKv})) {
      const ExtentHead& head = extent.head();
      if (!kind_.is_of(head)) continue;
      const std::string form = kind_.format() != nullptr ? head.format
                               : head.codec == "none"    ? "kv"
                                                         : "kv+" + head.codec;
      for (int layer = head.layer; layer < head.layer + head.layers(); ++layer) {
        count_layer(stored.slabs[layer], block - first, extent, layer, form);
      }
      there.slabs.push_back(std::move(extent));
    }
    for (PinnedExtent& extent : store_.find({.name = names[block], .kind = ExtentKind::kHidden})) {
      const ExtentHead& head = extent.head();
      const std::optional<HiddenFormat> format = stored_hidden_format(head, model_);
      if (!format || (!options_.lossy && !format->exact())) continue;
      for (int layer = head.layer; layer < head.layer + head.layers(); ++layer) {
        count_layer(stored.hidden[layer], block - first, extent, layer,
                    std::string(format->name()));
      }
      there.hidden.push_back(std::move(extent));
    }
    if (there.slabs.empty() && there.hidden.empty()) break;
    found.blocks.push_back(std::move(there));
  }
  const std::lock_guard guard(mutex_);
  found.decision = decide_restore(scaled_.get(), stored, tokens);
  if (!found.blocks.empty() && found.decision.blocks == 0) take_factors(relaxed(factors_));
  found.blocks.resize(std::min<std::size_t>(found.blocks.size(), found.decision.blocks));
  return found;
}

// From a job that is over. Of short ones the beginning and the end are too large a part.
void Restorer::learn(const RestoreJob& job) {
  const RestoreDecision& decision = job.decision();
  if (decision.blocks * kBlockTokens < kRestorePieceTokens) return;
  const std::lock_guard guard(mutex_);
  take_factors(learned(factors_, decision.expected, job.times().busy, job.times().total));
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

// Weights of K and V may have to be taken apart for it: only where hidden states come back.
Result<HiddenRestorer*> Restorer::hidden_restorer(HiddenFormat::Values values) {
  auto& restorer = values == HiddenFormat::Values::kExact ? exact_ : int8_;
  if (restorer == nullptr) {
    const HiddenFormat format(values, hidden_type(model_), model_.config().hidden);
    KVLANE_ASSIGN(restorer,
                  HiddenRestorer::create(model_, format, kRestorePieceTokens, kind_.format()));
  }
  return restorer.get();
}

std::span<SealedReader> Restorer::sealed_readers(int threads) {
  const auto count = static_cast<std::size_t>(threads);
  while (sealed_readers_.size() < count) sealed_readers_.emplace_back(*kind_.format());
  return sealed_readers_;
}

}  // namespace kvlane
