// What the engine knows of a request: its journey and those it answers to; and of each of its
// answers: tokens, blocks, time account.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/block_pool.h"
#include "cache/sparse_cache.h"
#include "engine/block_names.h"
#include "engine/engine.h"
#include "engine/kv_receiver.h"
#include "engine/kv_sender.h"
#include "engine/online_axes.h"
#include "engine/output_text.h"
#include "ops/sampling.h"
#include "plan/admission.h"
#include "restore/hidden_gatherer.h"
#include "restore/restorer.h"

namespace kvlane {

struct Request;

// One answer in the making. Owned and touched by the engine's thread, except where a comment says
// otherwise.
struct Sequence {
  enum class State {
    kQueued,     // waits for blocks and a place in the batch, at first or again
    kRunning,    // gets tokens in each step
    kReceiving,  // has its blocks; another worker computes its prompt, the endpoint writes them
    kRestoring,  // has its blocks; some come from the state store, or somebody else brings them
    kSending,    // computed here, on its way to another worker
    kOver,
  };
  using AccountInterval = double TimeAccount::*;

  Sequence(Request& owner, int index, const Tokenizer& tokenizer, BlockTable empty,
           const BlockName& root);

  // Whether tokens of its prompt are gone: then `sparse` has the sequence, and its table nothing.
  bool evicted() const { return sparse && sparse->evicted(); }
  // Tokens whose K and V were written.
  int computed() const { return evicted() ? sparse->tokens() : table.tokens(); }
  // Those that are to come. The last one's logits give the next token.
  int missing() const { return static_cast<int>(tokens.size()) - computed(); }
  // Tokens that the table is to have: where some will be evicted, those of the prompt; where blocks
  // go while it runs, as many as the blocks that it may hold reach.
  int table_tokens() const;
  // Gives all blocks back.
  void release_blocks() {
    table.clear();
    if (sparse) sparse->clear();
    axes.reset();
  }

  // Ends the current interval of the account and begins another.
  void enter(AccountInterval next) {
    const TimePoint now = SteadyClock::now();
    account.*interval += seconds_between(interval_start, now);
    interval = next;
    interval_start = now;
  }

  Request& request;
  const int choice;
  State state = State::kQueued;
  std::vector<std::int32_t> tokens;  // prompt and answer
  int completion_tokens = 0;         // the end-of-sequence token included
  OutputText text;
  BlockTable table;
  int blocks_max = 0;  // that it holds at once, as those go that it does not see any more; 0: all
  std::optional<SparseCache> sparse;  // where the engine evicts tokens
  // Of its prompt's rows, where the engine finds them; shared by all answers to it.
  std::shared_ptr<const OnlineAxes> axes;
  BlockNames names;
  int published = 0;                  // blocks that were offered under their names
  int saved = 0;                      // of these, those that are in the state store or on their way
  bool prefetched = false;            // the state store was asked for what it has, ahead of time
  std::shared_ptr<SavedRows> hidden;  // its hidden states on their way to the state store
  std::unique_ptr<SequenceRestore>
      restore;  // null: not coming back, or waiting for somebody else's

  TimeAccount account;
  AccountInterval interval = &TimeAccount::queue;
  TimePoint interval_start;
};

// One request and its answers. As above.
struct Request {
  // Where the KV of the prompt goes or comes from.
  enum class Journey { kNone, kPush, kPark, kReceive, kFetch };

  Request(RequestId request_id, GenerationRequest generation_request, std::uint64_t seed)
      : id(request_id), generation(std::move(generation_request)), key{seed, 0} {}

  // Whether what is found of its prompt counts as found.
  bool counts_hits() const { return !stopped && prompt().completion_tokens == 0; }
  Sequence& prompt() { return *sequences.front(); }  // the answer that computes it for all
  const Sequence& prompt() const { return *sequences.front(); }
  int prompt_tokens() const { return static_cast<int>(generation.prompt.size()); }
  bool sends() const { return journey == Journey::kPush || journey == Journey::kPark; }
  // Whether memory for what it sends is still to be set aside.
  bool departs() const { return sends() && job == nullptr; }
  bool receives() const { return journey == Journey::kReceive || journey == Journey::kFetch; }

  const RequestId id;
  const GenerationRequest generation;
  SamplingKey key;                                   // of answer 0
  const ClientShares::Account* share = nullptr;      // of its client, while the request is live
  std::vector<std::unique_ptr<Sequence>> sequences;  // the others come when the prompt is computed
  int answers_over = 0;
  bool over = false;
  bool stopped = false;         // before its answer began: what is found then may be its own
  bool restore_failed = false;  // so that it is not tried again
  int cached_tokens = 0;        // of its prompt: found, until it was stopped

  // Who hears of it. Updates wait in `unheard` while nobody has attached yet.
  OnUpdate on_update;
  OnPrefilled on_prefilled;
  std::vector<Update> unheard;
  TimePoint attach_deadline;

  Journey journey = Journey::kNone;
  TransferId transfer;
  Address peer;
  std::shared_ptr<KvReceiver> receiver;
  std::shared_ptr<KvSender::Job> job;
  int blocks_sent = 0;     // complete blocks handed to the sender, the same for every layer
  bool encoded = false;    // the sender is done with the blocks
  bool delivered = false;  // the peer has all of it, or the transfer failed
  Status journey_status;   // the first thing that went wrong on the way
  std::vector<PrefillOutcome::First> first;  // of a prefill for another worker
  KvBytes kv;
};

inline int Sequence::table_tokens() const {
  if (sparse) return evicted() ? 0 : request.prompt_tokens();
  const int all = static_cast<int>(tokens.size());
  const bool arrives = request.receives() && completion_tokens == 0;  // whole prompts do
  if (blocks_max == 0 || arrives) return all;
  return std::min(all, (table.gone() + blocks_max) * kBlockTokens);
}

inline Sequence::Sequence(Request& owner, int index, const Tokenizer& tokenizer, BlockTable empty,
                          const BlockName& root)
    : request(owner),
      choice(index),
      tokens(owner.generation.prompt),
      text(tokenizer, owner.generation.stop),
      table(std::move(empty)),
      names(root),
      interval_start(SteadyClock::now()) {
  tokens.reserve(tokens.size() + owner.generation.max_tokens);
}

}  // namespace kvlane
