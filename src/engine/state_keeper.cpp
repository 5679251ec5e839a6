// Puts together what an engine saves with and restores with.
// SPDX-License-Identifier: Apache-2.0
#include "engine/state_keeper.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace kvlane {

HiddenRoom HiddenRoom::of(const Model& model, int rows) {
  constexpr std::size_t kRingBytesMin = std::size_t{64} << 20;
  constexpr std::size_t kDraftBytesMin = std::size_t{256} << 20;
  const std::size_t pass = std::size_t(rows) * model.config().layers * model.config().hidden *
                           element_bytes(hidden_type(model));
  return {std::max(kRingBytesMin, 2 * pass), std::max(kDraftBytesMin, 4 * pass)};
}

Result<std::unique_ptr<StateKeeper>> StateKeeper::create(
    const Model& model, const BlockPool& pool, ForwardPass& forward, int pass_rows_max,
    const KvFormat* format, const StateOptions& options, const std::vector<Codebook>& codebooks,
    StateLanes lanes, std::function<void(BlockId)> on_saved, std::function<void()> wake) {
  const KvShape shape = model.config().kv_shape();
  KVLANE_ASSIGN(const Codec* const codec, find_codec(options.codec, model.isa()));
  std::unique_ptr<StateKeeper> keeper(new StateKeeper(shape, format, options));
  const bool lossy =
      options.forms.saves_hidden() && options.forms.hidden == HiddenFormat::Values::kInt8;
  keeper->restorer_ = std::make_unique<Restorer>(
      model, keeper->kind_, *options.store, forward,
      RestorerOptions{.profile = options.profile, .lossy = lossy, .pass_rows_max = pass_rows_max},
      std::move(wake), std::move(lanes.restoring), std::move(lanes.direct));
  // Blocks wait where they are: who has no block to compute into waits, too.
  const std::size_t slab_bytes_max =
      options.saves_all ? std::numeric_limits<std::size_t>::max() : options.saving_bytes;
  if (options.forms.slabs_first < shape.layers) {
    keeper->slabs_ =
        std::make_unique<SlabSaver>(pool, keeper->kind_, *codec, *options.store,
                                    SlabSaverOptions{.model = model.identity(),
                                                     .layer_first = options.forms.slabs_first,
                                                     .layer_last = shape.layers,
                                                     .bytes_max = slab_bytes_max,
                                                     .codebooks = codebooks},
                                    std::move(on_saved), std::move(lanes.saving));
  }
  if (options.forms.saves_hidden()) {
    const HiddenFormat rows(options.forms.hidden, hidden_type(model), model.config().hidden);
    KVLANE_ASSIGN(
        keeper->hidden_,
        HiddenGatherer::create(*options.store, model,
                               {.format = rows,
                                .layer_first = options.forms.hidden_first,
                                .layer_last = options.forms.hidden_last,
                                .ring_bytes = HiddenRoom::of(model, pass_rows_max).ring_bytes,
                                .waits = options.saves_all}));
  }
  return keeper;
}

void StateKeeper::prefetch(std::span<const BlockName> names, int first, int tokens) {
  FoundState found = restorer_->find(names, first, tokens);
  std::vector<PinnedExtent> wanted;
  for (FoundState::Block& block : found.blocks) {
    for (auto* extents : {&block.hidden, &block.slabs}) {
      std::move(extents->begin(), extents->end(), std::back_inserter(wanted));
    }
  }
  if (!wanted.empty()) store_->prefetch(std::move(wanted));
}

void StateKeeper::flush() {
  if (slabs_) slabs_->flush();
  if (hidden_) hidden_->flush();
  store_->flush();
}

int StateKeeper::stored_tokens(std::span<const BlockName> names) const {
  // One token more: a restore leaves at least one to be computed.
  const int tokens = static_cast<int>(names.size()) * kBlockTokens + 1;
  return restorer_->find(names, 0, tokens).decision.blocks * kBlockTokens;
}

bool StateKeeper::holds(const BlockName& name) const {
  const int layers = kind_.shape().layers - forms_.slabs_first;
  return layers == 0 ||
         store_->holds({.name = name, .kind = ExtentKind::kKv}, forms_.slabs_first, layers);
}

}  // namespace kvlane
