// Blocks that go to the state store, and sequences that come back from it.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "engine/engine_impl.h"

namespace kvlane {
namespace {

// With nobody answering, restores compute so long before commands are looked at.
constexpr double kRestoreTurnSeconds = 0.01;

// So many of those that wait have their state brought to the store's memory.
constexpr std::size_t kPrefetchedMax = 4;

}  // namespace

Result<int> EngineImpl::stored_tokens(std::span<const std::int32_t> prompt,
                                      const std::string& cache_salt) const {
  if (keeper_ == nullptr) return 0;
  KVLANE_ASSIGN(const BlockName root,
                BlockNames::root(model_.identity(), block_format(), cache_salt));
  BlockNames names(root);
  KVLANE_TRY(names.extend(prompt));
  return keeper_->stored_tokens(names.all());
}

void EngineImpl::flush_state() {
  if (keeper_ != nullptr) keeper_->flush();
}

// Hands complete blocks to the saver. Those it does not take now are offered again with the next
// ones, and for the last time when the sequence ends.
void EngineImpl::save_blocks(Sequence& sequence) {
  if (keeper_ == nullptr || !keeper_->saves_slabs()) return;
  const std::span<const BlockName> names = sequence.names.all();
  for (; sequence.saved < sequence.published; ++sequence.saved) {
    const BlockName& name = names[sequence.saved];
    if (keeper_->holds(name)) continue;
    const BlockId id = sequence.table.id(sequence.saved);
    pool_.retain(id);
    if (keeper_->save({id, sequence.saved, name, names.front()})) continue;
    pool_.release(id);
    return;
  }
}

// Blocks before `end` go, and the saver has not taken them because it is behind.
void EngineImpl::forgo_saving(Sequence& sequence, int end) {
  if (keeper_ == nullptr || !keeper_->saves_slabs() || sequence.saved >= end) return;
  totals_.save_failures += end - sequence.saved;
  sequence.saved = end;
}

// Of a sequence that has just stopped running for good.
void EngineImpl::count_unsaved(Sequence& sequence) {
  if (sequence.state == Sequence::State::kRunning) forgo_saving(sequence, sequence.published);
}

// There is no room to start the next ones: what they will read may come meanwhile.
void EngineImpl::prefetch() {
  if (keeper_ == nullptr) return;
  std::vector<Sequence*> next(std::min(queued_.size(), kPrefetchedMax));
  std::partial_sort_copy(
      queued_.begin(), queued_.end(), next.begin(), next.end(),
      [this](const Sequence* a, const Sequence* b) { return goes_before(rank(*a), rank(*b)); });
  for (Sequence* const sequence : next) {
    if (std::exchange(sequence->prefetched, true) || sequence->request.receives()) continue;
    int first = known_blocks(*sequence);
    (void)find_in_sight(*sequence, first);
    keeper_->prefetch(sequence->names.all(), first, static_cast<int>(sequence->tokens.size()));
  }
}

// Chooses the rows of this pass whose hidden states are saved. A sequence is followed from the next
// beginning of a block on.
void EngineImpl::gather_hidden(PassHooks& hooks) {
  saved_rows_.clear();
  saved_spans_.clear();
  in_device_order_ = false;
  if (keeper_ == nullptr || !keeper_->saves_hidden()) return;
  int row = 0;
  for (std::size_t span = 0; span < slots_.size(); ++span) {
    const Slot& slot = slots_[span];
    Sequence& sequence = *slot.sequence;
    const int position = sequence.table.tokens();
    if (sequence.hidden == nullptr && position % kBlockTokens == 0) {
      sequence.hidden = keeper_->begin_hidden();
    }
    if (sequence.hidden != nullptr) {
      spans_[span].saved = sequence.hidden->number();
      saved_rows_.push_back({sequence.hidden.get(), position, row, slot.tokens});
      saved_spans_.push_back(static_cast<int>(span));
    }
    row += slot.tokens;
  }
  // Ranks look for them where the spans say.
  if (saved_rows_.empty() || options_.ranks != nullptr) return;
  if (model_.device() == nullptr) {
    hooks.on_normed = hidden_shown_;
  } else {
    hooks.on_kept = hidden_kept_;
  }
}

// A device has rows in an order of its own, the same in all layers; side by side they are one copy.
void EngineImpl::put_in_device_order(const KeptRows& kept) {
  for (std::size_t i = 0; i < saved_rows_.size(); ++i) {
    saved_rows_[i].row = kept.first[saved_spans_[i]];
  }
  std::sort(saved_rows_.begin(), saved_rows_.end(),
            [](const PassRows& a, const PassRows& b) { return a.row < b.row; });
  in_device_order_ = true;
}

// Blocks that are complete and were not published yet have their names now.
void EngineImpl::complete_hidden(Sequence& sequence) {
  if (sequence.hidden == nullptr) return;
  const std::span<const BlockName> names = sequence.names.all();
  for (int block = sequence.published; block < sequence.table.tokens() / kBlockTokens; ++block) {
    keeper_->complete_hidden(*sequence.hidden, block, names[block], names.front());
  }
}

void EngineImpl::end_hidden(Sequence& sequence) {
  if (sequence.hidden == nullptr) return;
  keeper_->end_hidden(*sequence.hidden);
  sequence.hidden.reset();
}

// Whether another one brings back the block that this sequence misses next.
bool EngineImpl::is_being_restored(const Sequence& sequence) const {
  const std::size_t next = sequence.table.tokens() / kBlockTokens;
  if (next >= sequence.names.all().size()) return false;
  return std::any_of(restoring_.begin(), restoring_.end(), [&](const Sequence* other) {
    if (other == &sequence || other->restore == nullptr) return false;
    const std::span<const BlockName> names = other->names.all();
    return next < names.size() && names[next] == sequence.names.all()[next];
  });
}

// What the store has of a long sequence from a later block than `first` on, if no token behind what
// is stored sees those before it; `first` becomes that block.
std::optional<FoundState> EngineImpl::find_in_sight(const Sequence& sequence, int& first) {
  const BlockTable& table = sequence.table;
  const std::span<const BlockName> names = sequence.names.all();
  const int tokens = static_cast<int>(sequence.tokens.size());
  if (table.first_seen(tokens) <= first) return std::nullopt;
  const int end = first + keeper_->find(names, first, tokens).decision.blocks;
  const int begin = table.first_seen(end * kBlockTokens);
  if (begin <= first) return std::nullopt;
  FoundState found = keeper_->find(names.first(end), begin, tokens, true);
  if (found.decision.blocks != end - begin) return std::nullopt;
  first = begin;
  return found;
}

// What the store has of the sequence from block `first` on, or from a later one.
FoundState EngineImpl::find_stored(const Sequence& sequence, int& first) {
  const BlockTable& table = sequence.table;
  const std::span<const BlockName> names = sequence.names.all();
  const int tokens = static_cast<int>(sequence.tokens.size());
  int begin = first;
  std::optional<FoundState> in_sight = find_in_sight(sequence, begin);
  // Those of the table that are empty go along; for the others there must be room.
  if (in_sight && in_sight->decision.blocks <= table.blocks() - first + pool_.blocks_free()) {
    first = begin;
    return std::move(*in_sight);
  }
  // As far as the table goes: what is behind comes next.
  return keeper_->find(names.first(std::min<std::size_t>(names.size(), table.blocks())), first,
                       tokens);
}

// Looks for more of the sequence in the store. False: there is nothing worth bringing back.
bool EngineImpl::begin_restore(Sequence& sequence) {
  if (keeper_ == nullptr || sequence.request.restore_failed) return false;
  BlockTable& table = sequence.table;
  int first = table.tokens() / kBlockTokens;
  if (table.tokens() % kBlockTokens != 0 ||
      first >= static_cast<int>(sequence.names.all().size())) {
    return false;
  }
  if (is_being_restored(sequence)) return true;
  FoundState found = find_stored(sequence, first);
  const int blocks = found.decision.blocks;
  if (blocks == 0) {
    keeper_->forgo(found);
    return false;
  }
  auto job = keeper_->begin(std::move(found), sequence.names.all(), first, table, sequence.tokens);
  if (!job.ok()) return false;
  if (first > table.tokens() / kBlockTokens) {
    table.skip_to(first);
    (void)table.grow((first + blocks) * kBlockTokens);  // there is room
  }
  sequence.restore = std::move(*job);
  return true;
}

// A turn of those that come back. While others answer it takes as long as a step may take because
// of prompts, or one piece if that is longer.
bool EngineImpl::advance_restores() {
  const TimePoint start = SteadyClock::now();
  const bool answering = std::any_of(running_.begin(), running_.end(), [](const Sequence* running) {
    return running->completion_tokens > 0;
  });
  const double turn_seconds =
      answering ? (options_.slowdown_max - 1) * pace_.answer_seconds : kRestoreTurnSeconds;
  bool worked = false;
  for (std::size_t i = 0; i < restoring_.size();) {
    Sequence& sequence = *restoring_[i];
    if (worked && seconds_since(start) > turn_seconds) break;
    if (sequence.restore == nullptr) {
      adopt_what_others_computed(sequence);
      if (is_being_restored(sequence)) {
        ++i;
        continue;
      }
      worked = true;
      if (!begin_restore(sequence)) end_restore(sequence);
      continue;
    }
    switch (sequence.restore->advance()) {
      case SequenceRestore::Progress::kWorked: worked = true; break;
      case SequenceRestore::Progress::kWaiting: ++i; break;
      case SequenceRestore::Progress::kOver:
        worked = true;
        end_restore(sequence);
        break;
    }
  }
  restore_seconds_ = seconds_since(start);
  outside_seconds_ += restore_seconds_;
  return worked;
}

// What is back is in the cache; the rest of the sequence is computed.
void EngineImpl::end_restore(Sequence& sequence) {
  std::erase(restoring_, &sequence);
  const std::unique_ptr<SequenceRestore> job = std::move(sequence.restore);
  if (job != nullptr) {
    const int before = sequence.published;
    const int first = std::max(before, sequence.table.gone());
    const int complete = first + job->blocks();
    sequence.table.publish(sequence.names.all().first(complete), first);
    sequence.published = complete;
    sequence.saved = std::max(sequence.saved, first);
    const std::int64_t tokens = std::int64_t{complete - before} * kBlockTokens;
    totals_.restores += 1;
    totals_.restore_seconds += job->times().total;
    totals_.restore_seconds_expected += job->decision().seconds;
    totals_.restore_bytes += static_cast<std::int64_t>(job->times().bytes);
    if (sequence.request.counts_hits()) {
      sequence.request.cached_tokens += static_cast<int>(tokens);
      totals_.prefix_hit_tokens += tokens;
      totals_.store_hit_tokens += tokens;
    }
    if (!job->status().ok()) {
      // The table may say more than is true. What is whole can be found by its name.
      ++totals_.restores_failed;
      sequence.request.restore_failed = true;
      sequence.release_blocks();
      if (sequence.completion_tokens == 0) {
        waiting_.fetch_add(1);
        sequence.request.stopped = true;
      }
      sequence.enter(sequence.completion_tokens > 0 ? &TimeAccount::wait_for_memory
                                                    : &TimeAccount::queue);
      queue(sequence);
      return;
    }
    const bool more = complete == sequence.table.blocks() && sequence.missing() > 1;
    give_back_unseen(sequence);
    if (more && begin_restore(sequence)) {
      restoring_.push_back(&sequence);
      return;
    }
  }
  go_on(sequence);
}

}  // namespace kvlane
