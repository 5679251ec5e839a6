// One saver of slabs, one of hidden states, one who brings back.
// SPDX-License-Identifier: Apache-2.0
#include "engine/local_state.h"

#include <limits>
#include <utility>

#include "restore/hidden_room.h"

namespace kvlane {
namespace {

class LocalState final : public StateKeeper {
 public:
  LocalState(const KvShape& shape, const KvFormat* format, const StateOptions& options)
      : kind(shape, format), store(options.store), forms(options.forms) {}

  bool saves_slabs() const override { return slabs != nullptr; }
  bool holds(const BlockName& name) const override {
    const int layers = kind.shape().layers - forms.slabs_first;
    return layers == 0 ||
           store->holds({.name = name, .kind = ExtentKind::kKv}, forms.slabs_first, layers);
  }
  bool save(const BlockToSave& block) override { return slabs == nullptr || slabs->add(block); }
  std::int64_t failed() const override { return slabs ? slabs->failed() : 0; }

  bool saves_hidden() const override { return hidden != nullptr; }
  std::shared_ptr<SavedRows> begin_hidden() override { return hidden->begin(); }
  void copy_hidden(int layer, std::span<const PassRows> rows, ByteView normed) override {
    hidden->copy(layer, rows, normed);
  }
  std::shared_ptr<const DeviceMark> fetch_hidden(std::span<const PassRows> rows,
                                                 const KeptRows& kept) override {
    return hidden->fetch(rows, kept);
  }
  void complete_hidden(SavedRows& saved, int block, const BlockName& name,
                       const BlockName& first_name) override {
    hidden->complete(saved, block, name, first_name);
  }
  void end_hidden(SavedRows& saved) override { hidden->end(saved); }
  std::int64_t hidden_tokens_lost() const override {
    return hidden ? static_cast<std::int64_t>(hidden->figures().tokens_lost) : 0;
  }

  FoundState find(std::span<const BlockName> names, int first, int tokens, bool alone) override {
    return restorer->find(names, first, tokens, alone);
  }
  void forgo(const FoundState& found) override { restorer->forgo(found); }
  Result<std::unique_ptr<SequenceRestore>> begin(FoundState found,
                                                 std::span<const BlockName> /*names*/, int first,
                                                 BlockTable& table,
                                                 std::span<const std::int32_t> tokens) override {
    KVLANE_ASSIGN(std::unique_ptr<SequenceRestore> job,
                  restorer->begin(std::move(found), first, table, tokens));
    return job;
  }
  void prefetch(std::span<const BlockName> names, int first, int tokens) override {
    restorer->prefetch(names, first, tokens);
  }

  int stored_tokens(std::span<const BlockName> names) override {
    // One token more: a restore leaves at least one to be computed.
    const int tokens = static_cast<int>(names.size()) * kBlockTokens + 1;
    return restorer->find(names, 0, tokens).decision.blocks * kBlockTokens;
  }
  void flush() override {
    if (slabs) slabs->flush();
    if (hidden) hidden->flush();
    store->flush();
  }

  const SlabKind kind;
  const std::shared_ptr<Store> store;
  const StateForms forms;
  std::unique_ptr<Restorer> restorer;
  std::unique_ptr<SlabSaver> slabs;        // null: no layer's slabs are saved
  std::unique_ptr<HiddenGatherer> hidden;  // null: no layer's hidden states are
};

}  // namespace

Result<std::unique_ptr<StateKeeper>> keep_state_here(
    const Model& model, const BlockPool& pool, ForwardPass& forward, int pass_rows_max,
    const KvFormat* format, const StateOptions& options, const std::vector<Codebook>& codebooks,
    StateLanes lanes, std::function<void(BlockId)> on_saved, std::function<void()> wake) {
  const KvShape shape = model.config().kv_shape();
  KVLANE_ASSIGN(const Codec* const codec, find_codec(options.codec, model.isa()));
  auto state = std::make_unique<LocalState>(shape, format, options);
  const bool lossy =
      options.forms.saves_hidden() && options.forms.hidden == HiddenFormat::Values::kInt8;
  state->restorer = std::make_unique<Restorer>(
      model, state->kind, *options.store, forward,
      RestorerOptions{.profile = options.profile, .lossy = lossy, .pass_rows_max = pass_rows_max},
      std::move(wake), std::move(lanes.restoring), std::move(lanes.direct));
  // Blocks wait where they are: who has no block to compute into waits, too.
  const std::size_t slab_bytes_max =
      options.saves_all ? std::numeric_limits<std::size_t>::max() : options.saving_bytes;
  if (options.forms.slabs_first < shape.layers) {
    state->slabs =
        std::make_unique<SlabSaver>(pool, state->kind, *codec, *options.store,
                                    SlabSaverOptions{.model = model.identity(),
                                                     .layer_first = options.forms.slabs_first,
                                                     .layer_last = shape.layers,
                                                     .bytes_max = slab_bytes_max,
                                                     .codebooks = codebooks},
                                    std::move(on_saved), std::move(lanes.saving));
  }
  if (options.forms.saves_hidden()) {
    const HiddenFormat rows(options.forms.hidden, hidden_type(model), model.config().hidden);
    const HiddenRoom room = HiddenRoom::of(model, pass_rows_max, shape.layers);
    KVLANE_ASSIGN(state->hidden, HiddenGatherer::create(*options.store, model,
                                                        {.format = rows,
                                                         .layer_first = options.forms.hidden_first,
                                                         .layer_last = options.forms.hidden_last,
                                                         .ring_bytes = room.ring_bytes,
                                                         .waits = options.saves_all}));
  }
  return std::unique_ptr<StateKeeper>(std::move(state));
}

}  // namespace kvlane
