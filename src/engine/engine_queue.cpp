// Who runs: admission, the prefix cache, and who gives way when blocks are short.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/engine_impl.h"

namespace kvlane {
namespace {

using State = Sequence::State;

}  // namespace

Rank EngineImpl::rank(const Sequence& sequence) const {
  const GenerationRequest& generation = sequence.request.generation;
  // Who has begun to answer, or to be sent, goes on before others begin, whatever its client has
  // had.
  const bool begun = sequence.completion_tokens > 0 || sequence.request.job != nullptr;
  return {generation.priority, begun ? -1 : sequence.request.share->served, sequence.request.id};
}

void EngineImpl::queue(Sequence& sequence) {
  sequence.state = State::kQueued;
  queued_.push_back(&sequence);
}

void EngineImpl::run(Sequence& sequence) {
  sequence.state = State::kRunning;
  const auto behind = [](const Sequence* one, const Sequence* other) {
    return goes_before({one->request.generation.priority, 0, one->request.id},
                       {other->request.generation.priority, 0, other->request.id});
  };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, behind), &sequence);
}

// Wherever it is, it is there no more. Its blocks stay.
void EngineImpl::detach(Sequence& sequence) {
  switch (sequence.state) {
    case State::kQueued:
      std::erase(queued_, &sequence);
      if (sequence.completion_tokens == 0) waiting_.fetch_sub(1);
      break;
    case State::kRunning:
      std::erase(running_, &sequence);
      save_blocks(sequence);
      end_hidden(sequence);
      break;
    case State::kReceiving: --receiving_; break;
    case State::kRestoring:
      std::erase(restoring_, &sequence);
      sequence.restore.reset();
      break;
    case State::kSending: break;
    case State::kOver: break;
  }
}

// The same, and it holds nothing.
void EngineImpl::leave(Sequence& sequence) {
  if (sequence.state == State::kOver) return;
  detach(sequence);
  count_unsaved(sequence);
  sequence.state = State::kOver;
  sequence.release_blocks();
}

// The first in rank starts, or nobody: who needs much is not overtaken for ever by those who need
// little. But memory for frames is what others have who were stopped, so they go on meanwhile.
void EngineImpl::admit() {
  bool frames_lack = false;
  while (Sequence* const next = first_queued(frames_lack)) {
    const Started started = start(*next);
    if (started == Started::kLacksFrames) frames_lack = true;
    if (started != Started::kLacksRoom) continue;
    Sequence* const victim = least_important();
    if (victim == nullptr ||
        victim->request.generation.priority <= next->request.generation.priority) {
      break;
    }
    preempt(*victim);
  }
  if (!queued_.empty()) prefetch();
}

// In rank; of all, or of those that need no memory for frames that they do not have. Null: nobody.
Sequence* EngineImpl::first_queued(bool without_frames) const {
  Sequence* first = nullptr;
  Rank best;
  for (Sequence* const sequence : queued_) {
    if (without_frames && sequence->request.departs()) continue;
    const Rank mine = rank(*sequence);
    if (first != nullptr && !goes_before(mine, best)) continue;
    first = sequence;
    best = mine;
  }
  return first;
}

EngineImpl::Started EngineImpl::start(Sequence& sequence) {
  Request& request = sequence.request;
  // First what nobody could give it by stopping.
  const bool departs = request.departs();
  if (departs && messages_bytes_max(request) > endpoint_->outgoing_bytes_free()) {
    return Started::kLacksFrames;
  }
  if (places_taken() >= options_.sequences_max) return Started::kLacksRoom;
  const bool receives = request.receives() && sequence.completion_tokens == 0;
  const int tokens = static_cast<int>(sequence.tokens.size());
  const std::int64_t host_hits_before = totals_.host_hit_tokens;
  const int hits = receives ? 0 : adopt_prefix(sequence);
  const auto open_rows = [&] {
    return receives ? sequence.table.open_arriving_rows(tokens)
                    : sequence.table.open_rows(sequence.table.tokens() + 1);
  };
  const auto reserve_slots = [&] {
    return sequence.sparse ? sequence.sparse->reserve(pool_, request.prompt_tokens()) : Status();
  };
  if (!may_have(sequence, blocks_to_start(sequence) - hits) ||
      !sequence.table.grow(sequence.table_tokens()).ok() || !reserve_slots().ok() ||
      !open_rows().ok()) {
    sequence.release_blocks();
    totals_.host_hit_tokens = host_hits_before;  // nobody had anything of it
    return Started::kLacksRoom;
  }
  if (departs) {
    if (const Status status = depart(request); !status.ok()) {
      sequence.table.clear();
      totals_.host_hit_tokens = host_hits_before;
      // It waits: every transfer that ends wakes the engine.
      if (status.code() == Code::kExhausted) return Started::kLacksFrames;
      conclude(request, sequence, {}, status);
      return Started::kFailed;
    }
  }
  std::erase(queued_, &sequence);
  if (sequence.completion_tokens == 0) waiting_.fetch_sub(1);
  sequence.published = hits;
  sequence.saved = std::max(sequence.saved, sequence.table.gone());
  if (receives) {
    sequence.state = State::kReceiving;
    ++receiving_;
    if (const Status status = expect_arrival(request); !status.ok()) fail(request, status);
    return Started::kStarted;
  }
  if (request.counts_hits()) {
    request.cached_tokens = hits * kBlockTokens;
    totals_.prefix_query_tokens += request.prompt_tokens();
    totals_.prefix_hit_tokens += request.cached_tokens;
  }
  if (begin_restore(sequence)) {
    sequence.enter(&TimeAccount::restore);
    sequence.state = State::kRestoring;
    restoring_.push_back(&sequence);
  } else {
    go_on(sequence);
  }
  return Started::kStarted;
}

// All that could be found is in its table: computes the rest.
void EngineImpl::go_on(Sequence& sequence) {
  if (sequence.completion_tokens == 0) {
    sequence.enter(&TimeAccount::prefill);
  } else {
    totals_.recomputed_tokens += sequence.missing() - 1;
    sequence.enter(&TimeAccount::restore);
  }
  run(sequence);
}

// Those of all its tokens; where some will be evicted, those of the prompt and of what stays of it.
int EngineImpl::blocks_to_start(const Sequence& sequence) const {
  const int blocks = blocks_for(sequence.table_tokens());
  if (!sequence.sparse) return blocks;
  return blocks + sequence.sparse->blocks_for_prompt(sequence.request.prompt_tokens());
}

bool EngineImpl::may_have(const Sequence& sequence, int blocks) const {
  // Who leaves when its prompt is computed has the blocks of that.
  const auto growing = std::count_if(running_.begin(), running_.end(), [](const Sequence* running) {
    return running->request.job == nullptr;
  });
  // Who goes before all that run may take the blocks they would like to grow into.
  const bool first = std::none_of(running_.begin(), running_.end(), [&](const Sequence* running) {
    return running->request.generation.priority <= sequence.request.generation.priority;
  });
  // Where tokens are evicted nobody grows.
  const bool grow = !first && !options_.eviction;
  return may_start(blocks, pool_.blocks_free(), grow ? static_cast<int>(growing) : 0);
}

// How many of the sequence's blocks need not be computed, since those are known that later tokens
// see; at least one token is left, for its logits.
int EngineImpl::known_blocks(const Sequence& sequence) const {
  const std::span<const BlockName> names = sequence.names.all();
  const int most = static_cast<int>(
      std::min(names.size(), (sequence.tokens.size() - 1) / std::size_t{kBlockTokens}));
  const int seen_last = sequence.table.first_seen(most * kBlockTokens);
  int hits = 0;
  // Known are those from `first` on.
  for (int block = 0, first = 0; block < most && first <= seen_last; ++block) {
    if (!pool_.knows(names[block]) && !arena_.knows(names[block])) {
      first = block + 1;
    } else if (first <= sequence.table.first_seen((block + 1) * kBlockTokens)) {
      hits = block + 1;
    }
  }
  return hits;
}

// Takes what is known of the sequence's blocks. Returns how many it need not compute.
int EngineImpl::adopt_prefix(Sequence& sequence) {
  if (!shares_blocks()) return 0;
  BlockTable& table = sequence.table;
  const std::span<const BlockName> names = sequence.names.all();
  const int hits = known_blocks(sequence);
  table.skip_to(table.first_seen(hits * kBlockTokens));
  for (int block = table.blocks(); block < hits; ++block) {
    if (const std::optional<BlockId> known = pool_.find(names[block])) {
      table.append_sealed(*known);
    } else if (!adopt_from_arena(sequence, names[block])) {
      break;
    }
  }
  // Where taking one has pushed others out, fewer tokens may see blocks that were skipped.
  if (table.gone() > table.first_seen(table.tokens())) table.clear();
  return table.blocks();
}

// The blocks that come next for this sequence, if somebody has computed them since it started.
void EngineImpl::adopt_what_others_computed(Sequence& sequence) {
  if (!shares_blocks()) return;
  const std::span<const BlockName> names = sequence.names.all();
  while (sequence.table.tokens() % kBlockTokens == 0 && sequence.missing() > kBlockTokens) {
    const std::size_t next = sequence.table.tokens() / kBlockTokens;
    const std::optional<BlockId> known =
        next < names.size() ? pool_.find(names[next]) : std::nullopt;
    if (!known) break;
    sequence.table.adopt_next(*known);
    sequence.published = static_cast<int>(next) + 1;
    if (!sequence.request.counts_hits()) continue;
    sequence.request.cached_tokens += kBlockTokens;
    totals_.prefix_hit_tokens += kBlockTokens;
  }
  give_back_unseen(sequence);
}

// Blocks that no later token sees. While its prompt is computed, it takes as many for what comes
// next, before others who have none yet start with them.
void EngineImpl::give_back_unseen(Sequence& sequence) {
  const int seen = sequence.table.first_seen(sequence.table.tokens());
  if (seen == sequence.table.gone()) return;
  save_blocks(sequence);
  forgo_saving(sequence, seen);
  sequence.table.drop_unseen();
  (void)sequence.table.grow(sequence.table_tokens());
}

bool EngineImpl::adopt_from_arena(Sequence& sequence, const BlockName& name) {
  if (!arena_.knows(name)) return false;
  const Result<BlockId> block = pool_.allocate();
  if (!block.ok()) return false;
  // Taking the block may have pushed the very copy out that was wanted.
  if (!arena_.get(name, pool_.block(*block))) {
    pool_.release(*block);
    return false;
  }
  pool_.set_state(*block, BlockState::kFull);
  pool_.set_state(*block, BlockState::kSealed);
  pool_.publish(*block, name);
  sequence.table.append_sealed(*block);
  if (sequence.request.counts_hits()) totals_.host_hit_tokens += kBlockTokens;
  return true;
}

Sequence* EngineImpl::least_important() const {
  return running_.empty() ? nullptr : running_.back();
}

// Its sealed blocks stay as long as nobody needs their memory, then in the arena; what is gone when
// it goes on is computed again, but what was sent of it stays sent.
void EngineImpl::preempt(Sequence& sequence) {
  detach(sequence);
  // Those that are being sent are read until then.
  if (sequence.request.job != nullptr) sender_->wait(*sequence.request.job);
  sequence.release_blocks();
  sequence.enter(sequence.completion_tokens > 0 ? &TimeAccount::wait_for_memory
                                                : &TimeAccount::queue);
  if (sequence.completion_tokens == 0) {
    waiting_.fetch_add(1);
    sequence.request.stopped = true;
  }
  ++totals_.preemptions;
  queue(sequence);
}

// Gives every running sequence the blocks of its next step, and rows for one token of it. Where
// there are none, the least important one stops; the most important one always gets on.
void EngineImpl::make_room() {
  auto next = running_.begin();
  while (next != running_.end()) {
    Sequence& sequence = **next;
    if (sequence.evicted() || (sequence.table.grow(sequence.table_tokens()).ok() &&
                               sequence.table.open_rows(sequence.table.tokens() + 1).ok())) {
      ++next;
      continue;
    }
    // Those before it in rank have their blocks for this step already, and keep them.
    const std::ptrdiff_t place = next - running_.begin();
    preempt(*least_important());
    next = running_.begin() + place;
  }
}

}  // namespace kvlane
