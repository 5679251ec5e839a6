// One request inside the engine: its tokens, blocks, journey and time account.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/block_pool.h"
#include "engine/engine.h"
#include "engine/kv_receiver.h"
#include "engine/kv_sender.h"
#include "engine/output_text.h"
#include "ops/sampling.h"

namespace kvlane {

// Owned and touched by the engine's thread, except where a comment says otherwise.
struct Sequence {
  enum class State {
    kQueued,     // waits for blocks and a place in the batch
    kPrefill,    // its prompt is being computed
    kDecode,     // one token a step
    kReceiving,  // another worker computes its prompt; the endpoint writes its blocks
    kSending,    // computed here, on its way to another worker
  };
  // Where the KV of the prompt goes or comes from.
  enum class Journey { kNone, kPush, kPark, kReceive };

  Sequence(RequestId request_id, GenerationRequest generation, const Tokenizer& tokenizer,
           BlockPool& pool)
      : id(request_id),
        request(std::move(generation)),
        tokens(request.prompt),
        text(tokenizer, request.stop),
        table(pool),
        submitted(SteadyClock::now()) {}

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  // Everything this sequence can ever hold: taken at admission, so that it never stops half way.
  int tokens_max() const { return prompt_tokens() + request.max_tokens; }
  bool sends() const { return journey == Journey::kPush || journey == Journey::kPark; }

  const RequestId id;
  const GenerationRequest request;
  State state = State::kQueued;
  std::vector<std::int32_t> tokens;  // prompt and answer; all but the last are in the blocks
  int completion_tokens = 0;         // the end-of-sequence token included
  OutputText text;
  SamplingKey key;
  BlockTable table;
  bool seated = false;  // has its blocks and its place in the batch

  // Who hears of it. Updates wait in `unheard` while nobody has attached yet.
  OnUpdate on_update;
  OnPrefilled on_prefilled;
  Update unheard;
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
  std::string first_text;

  TimePoint submitted;
  TimePoint phase_start;  // of prefill or decode
  TimeAccount account;
  KvBytes kv;
};

}  // namespace kvlane
