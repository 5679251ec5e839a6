// The head's end: it decides, and waits where an engine would compute.
// SPDX-License-Identifier: Apache-2.0
#include "engine/ranked_state.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "format/shape.h"
#include "model/part.h"
#include "quant/heads_together.h"
#include "ranks/state_letter.h"

namespace kvlane {
namespace {

// Blocks whose slabs ranks have not read yet. Outlives the keeper while they do.
struct Saving {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t blocks = 0;
};

// One sequence that all ranks bring back, each its part.
class RankedRestore final : public SequenceRestore {
 public:
  RankedRestore(RankGroup& group, RestoreOrder order, RestoreDecision decision, BlockTable& table)
      : group_(group),
        order_(std::move(order)),
        decision_(std::move(decision)),
        table_(table),
        blocks_(decision_.blocks),
        rows_allowed_(group.stages()),
        begun_(SteadyClock::now()) {}

  ~RankedRestore() override {
    if (told_) (void)group_.tell_all(encode_forget(order_.job));
  }

  Progress advance() override {
    if (over_) return Progress::kOver;
    auto answers = ask();
    if (!answers.ok()) return end(answers.status());
    std::vector<std::uint64_t> ready(group_.stages(), UINT64_MAX);
    bool worked = false, over = true;
    RestoreTimes times;
    for (int rank = 0; rank < std::ssize(*answers); ++rank) {
      const auto advanced = decode_advanced((*answers)[rank]);
      if (!advanced.ok()) return end(advanced.status());
      std::uint64_t& least = ready[rank / group_.ranks()];
      least = std::min(least, advanced->rows_ready);
      worked |= advanced->progress == Progress::kWorked;
      over &= advanced->progress == Progress::kOver;
      lose(advanced->blocks, advanced->status);
      add(times, *advanced);
    }
    times_ = times;
    if (over) return end({});
    // What has just become ready in all ranks of a stage goes on at once.
    worked |= ready != rows_allowed_;
    rows_allowed_ = std::move(ready);
    return worked ? Progress::kWorked : Progress::kWaiting;
  }

  int blocks() const override { return blocks_; }
  const Status& status() const override { return status_; }
  const RestoreDecision& decision() const override { return decision_; }
  const RestoreTimes& times() const override { return times_; }

 private:
  Result<std::vector<Bytes>> ask() {
    if (!told_) {
      order_.gone = table_.gone();
      for (int block = 0; block < table_.blocks(); ++block) {
        order_.blocks.push_back(table_.id(block));
      }
      KVLANE_TRY(group_.tell_all(encode_restore(order_)));
      told_ = true;
    }
    return group_.ask_all([&](int rank, std::uint64_t request) {
      return encode_advance({request, order_.job, rows_allowed_[rank / group_.ranks()]});
    });
  }

  void lose(int blocks, const Status& why) {
    blocks_ = std::min(blocks_, blocks);
    if (status_.ok()) status_ = why;
  }

  // Ranks work at once, so it is the slowest one that counts; bytes are everybody's.
  static void add(RestoreTimes& times, const Advanced& advanced) {
    for (const auto seconds : {&RestoreSeconds::recompute, &RestoreSeconds::project,
                               &RestoreSeconds::decode, &RestoreSeconds::read}) {
      times.busy.*seconds = std::max(times.busy.*seconds, advanced.busy.*seconds);
    }
    times.bytes += advanced.bytes;
  }

  Progress end(const Status& why) {
    if (!why.ok()) lose(0, why);
    const int end = (order_.first + blocks_) * kBlockTokens;
    if (table_.tokens() < end) table_.set_tokens(end);
    over_ = true;
    times_.total = seconds_since(begun_);
    return Progress::kOver;
  }

  RankGroup& group_;
  RestoreOrder order_;
  const RestoreDecision decision_;
  BlockTable& table_;
  int blocks_;
  std::vector<std::uint64_t> rows_allowed_;  // of each stage
  const TimePoint begun_;
  bool told_ = false;
  bool over_ = false;
  Status status_;
  RestoreTimes times_;
};

class RankedState final : public StateKeeper {
 public:
  RankedState(RankGroup& group, const StateOptions& options, int layers, std::size_t block_bytes,
              const KvFormat* format, std::function<void(BlockId)> on_saved,
              std::function<void()> wake)
      : group_(group),
        forms_(options.forms),
        layers_(layers),
        from_tokens_(group.ranks() == 1 || format == nullptr || !codes_heads_together(*format)),
        saving_max_(options.saves_all
                        ? SIZE_MAX
                        : std::max<std::size_t>(1, options.saving_bytes / block_bytes)),
        on_saved_(std::move(on_saved)) {
    group_.set_on_wake(std::move(wake));
  }
  ~RankedState() override {
    flush();
    group_.set_on_wake({});
  }

  bool saves_slabs() const override { return forms_.slabs_first < layers_; }
  // Only ranks know; they leave out what they have.
  bool holds(const BlockName& /*name*/) const override { return false; }

  bool save(const BlockToSave& block) override {
    {
      const std::lock_guard lock(saving_->mutex);
      if (saving_->blocks >= saving_max_) return false;
      ++saving_->blocks;
    }
    const auto done = [saving = saving_, on_saved = on_saved_, id = block.id](const Status&) {
      {
        const std::lock_guard lock(saving->mutex);
        --saving->blocks;
      }
      saving->changed.notify_all();
      on_saved(id);
    };
    const Status asked = group_.ask_all_later(
        [&](int, std::uint64_t request) {
          return encode_save({request, block});
        },
        done);
    // Of ranks that are lost nobody answers; the block may have been read, so it stays.
    return asked.ok() || !group_.lost().ok();
  }
  std::int64_t failed() const override {
    return static_cast<std::int64_t>(group_.state_figures().save_failures);
  }

  bool saves_hidden() const override { return forms_.saves_hidden(); }
  std::shared_ptr<SavedRows> begin_hidden() override {
    return std::make_shared<SavedRows>(++streams_);
  }
  void copy_hidden(int, std::span<const PassRows>, ByteView) override {}
  std::shared_ptr<const DeviceMark> fetch_hidden(std::span<const PassRows>,
                                                 const KeptRows&) override {
    return nullptr;
  }
  // Whoever is lost is told by the next pass.
  void complete_hidden(SavedRows& saved, int block, const BlockName& name,
                       const BlockName& first_name) override {
    (void)group_.tell_all(encode_complete({saved.number(), block, name, first_name}));
  }
  void end_hidden(SavedRows& saved) override {
    (void)group_.tell_all(encode_end_rows(saved.number()));
  }
  std::int64_t hidden_tokens_lost() const override {
    return static_cast<std::int64_t>(group_.state_figures().hidden_tokens_lost);
  }

  FoundState find(std::span<const BlockName> names, int first, int tokens, bool alone) override {
    FoundState found;
    const FindOrder order{0, first, tokens, {names.begin(), names.end()}};
    const auto answers = group_.ask_all([&](int, std::uint64_t request) {
      FindOrder asked = order;
      asked.request = request;
      return encode_find(asked);
    });
    if (!answers.ok() || !merge(*answers, found)) return {};
    found.layers.first = first;
    found.layers.from_tokens = !alone && from_tokens_;
    found.decision = decide_restore(nullptr, found.layers, tokens);
    // Layers behind the first would be a pass of all ranks.
    if (found.decision.recomputed > 1) found.decision = {};
    const auto some = [](const StoredLayer& layer) { return layer.blocks > 0; };
    found.stored = std::ranges::any_of(found.layers.hidden, some) ||
                   std::ranges::any_of(found.layers.slabs, some);
    return found;
  }
  void forgo(const FoundState& /*found*/) override {}
  Result<std::unique_ptr<SequenceRestore>> begin(FoundState found, std::span<const BlockName> names,
                                                 int first, BlockTable& table,
                                                 std::span<const std::int32_t> tokens) override {
    const int end = first + found.decision.blocks;
    RestoreOrder order;
    order.job = ++jobs_;
    order.first = first;
    order.tokens.assign(tokens.begin(), tokens.begin() + std::ptrdiff_t{end} * kBlockTokens);
    order.names.assign(names.begin(), names.begin() + end);
    order.count = found.decision.blocks;
    order.embedded = found.decision.recomputed > 0;
    order.sources = found.decision.sources;
    return std::unique_ptr<SequenceRestore>(std::make_unique<RankedRestore>(
        group_, std::move(order), std::move(found.decision), table));
  }
  void prefetch(std::span<const BlockName> names, int first, int tokens) override {
    (void)group_.tell_all(encode_prefetch({0, first, tokens, {names.begin(), names.end()}}));
  }

  int stored_tokens(std::span<const BlockName> names) override {
    const int tokens = static_cast<int>(names.size()) * kBlockTokens + 1;
    return find(names, 0, tokens, false).decision.blocks * kBlockTokens;
  }
  void flush() override {
    {
      std::unique_lock lock(saving_->mutex);
      const auto saved = [&] { return saving_->blocks == 0; };
      constexpr Seconds kLook{0.1};
      while (!saving_->changed.wait_for(lock, kLook, saved)) {
        if (!group_.lost().ok()) return;
      }
    }
    (void)group_.ask_all([](int, std::uint64_t request) { return encode_flush(request); });
  }

 private:
  // What all ranks together have of each layer of the model. False: they do not say that.
  bool merge(const std::vector<Bytes>& answers, FoundState& found) const {
    for (int rank = 0; rank < std::ssize(answers); ++rank) {
      const auto stored = decode_stored(answers[rank]);
      const Share layers = share_of(layers_, group_.stages(), rank / group_.ranks());
      if (!stored.ok() || std::ssize(stored->hidden) != layers.count ||
          std::ssize(stored->slabs) != layers.count) {
        return false;
      }
      StoredBlocks& all = found.layers;
      if (rank % group_.ranks() == 0) {
        all.hidden.insert(all.hidden.end(), stored->hidden.begin(), stored->hidden.end());
        all.slabs.insert(all.slabs.end(), stored->slabs.begin(), stored->slabs.end());
        continue;
      }
      for (int i = 0; i < layers.count; ++i) {
        // Of hidden states a layer is one rank's, of slabs each rank has its heads.
        StoredLayer& hidden = all.hidden[layers.first + i];
        if (stored->hidden[i].blocks > hidden.blocks) hidden = stored->hidden[i];
        StoredLayer& slabs = all.slabs[layers.first + i];
        const StoredLayer& more = stored->slabs[i];
        slabs.bytes += more.bytes;
        slabs.blocks = slabs.form == more.form ? std::min(slabs.blocks, more.blocks) : 0;
      }
    }
    return true;
  }

  RankGroup& group_;
  const StateForms forms_;
  const int layers_;
  const bool from_tokens_;        // whether a rank can make its slabs of the first layer so
  const std::size_t saving_max_;  // blocks
  const std::function<void(BlockId)> on_saved_;
  const std::shared_ptr<Saving> saving_ = std::make_shared<Saving>();
  std::uint64_t streams_ = 0, jobs_ = 0;
};

}  // namespace

StatePlan state_plan(const StateOptions& options, const std::vector<Codebook>& codebooks) {
  return {
      .int8 = options.forms.saves_hidden() && options.forms.hidden == HiddenFormat::Values::kInt8,
      .hidden_first = options.forms.hidden_first,
      .hidden_last = options.forms.hidden_last,
      .slabs_first = options.forms.slabs_first,
      .codec = options.codec,
      .waits = options.saves_all,
      .codebooks = codebooks};
}

std::unique_ptr<StateKeeper> keep_state_on_ranks(RankGroup& group, const StateOptions& options,
                                                 int layers, std::size_t block_bytes,
                                                 const KvFormat* format,
                                                 std::function<void(BlockId)> on_saved,
                                                 std::function<void()> wake) {
  return std::make_unique<RankedState>(group, options, layers, block_bytes, format,
                                       std::move(on_saved), std::move(wake));
}

}  // namespace kvlane
