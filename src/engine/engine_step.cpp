// One step of the engine: choose a batch, compute it, take up what came out.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/engine_impl.h"

namespace kvlane {

// First come, first served: a request that does not fit yet is not overtaken.
void EngineImpl::admit() {
  for (const auto& [id, sequence] : live_) {
    if (sequence->state != Sequence::State::kQueued) continue;
    if (!seat(*sequence).ok()) return;
    sequence->state = Sequence::State::kPrefill;
    waiting_.fetch_sub(1);
    sequence->account.queue += seconds_since(sequence->submitted);
    sequence->phase_start = SteadyClock::now();
  }
}

// Every decoding sequence gets one token; prompts share what is left of the pass, oldest first.
bool EngineImpl::step() {
  slots_.clear();
  spans_.clear();
  std::vector<Sequence*> lost;  // their transfer could not even begin
  int prompt_tokens_left = options_.chunk_tokens;
  for (const auto& [id, sequence] : live_) {
    if (sequence->state == Sequence::State::kDecode) {
      slots_.push_back({sequence.get(), 1, true});
    } else if (sequence->state == Sequence::State::kPrefill && prompt_tokens_left > 0) {
      if (sequence->sends() && sequence->job == nullptr && !depart(*sequence).ok()) {
        lost.push_back(sequence.get());
        continue;
      }
      const int missing = sequence->prompt_tokens() - sequence->table.tokens();
      const int tokens = std::min(missing, prompt_tokens_left);
      slots_.push_back({sequence.get(), tokens, tokens == missing});
      prompt_tokens_left -= tokens;
    }
  }
  for (Sequence* sequence : lost) {
    conclude(*sequence, FinishReason::kLength, Status(sequence->journey_status));
  }
  if (slots_.empty()) return !lost.empty();

  for (const Slot& slot : slots_) {
    const std::int32_t* first = slot.sequence->tokens.data() + slot.sequence->table.tokens();
    spans_.push_back({&slot.sequence->table, {first, std::size_t(slot.tokens)}, slot.wants_logits});
  }
  const Status status = forward_->run(spans_, [this](int layer) { on_layer(layer); });
  int logits_index = 0;
  for (const Slot& slot : slots_) {
    Sequence& sequence = *slot.sequence;
    if (!status.ok()) {
      fail(sequence, status);
      continue;
    }
    const std::span<const float> logits =
        slot.wants_logits ? forward_->logits(logits_index++) : std::span<const float>();
    if (sequence.state == Sequence::State::kPrefill) {
      sequence.account.prefill_attention += forward_->times().attention;
      after_prefill_chunk(sequence, logits);
    } else {
      sequence.account.decode_attention += forward_->times().attention;
      accept_token(sequence, sample_token(logits, sequence.request.sampling, sequence.key,
                                          static_cast<int>(sequence.tokens.size())));
    }
  }
  return true;
}

// Slabs that this pass completed leave while the next layer is computed.
void EngineImpl::on_layer(int layer) {
  for (const Slot& slot : slots_) {
    Sequence& sequence = *slot.sequence;
    if (sequence.job == nullptr) continue;
    const int tokens = sequence.table.tokens() + slot.tokens;
    const int blocks = slot.wants_logits ? blocks_for(tokens) : tokens / kBlockTokens;
    sender_->add(sequence.job, layer, sequence.blocks_sent, blocks);
  }
}

void EngineImpl::after_prefill_chunk(Sequence& sequence, std::span<const float> logits) {
  if (logits.empty()) {  // more of the prompt is to come
    sequence.blocks_sent = sequence.table.tokens() / kBlockTokens;
    return;
  }
  sequence.account.prefill = seconds_since(sequence.phase_start);
  const std::int32_t token = sample_token(logits, sequence.request.sampling, sequence.key,
                                          static_cast<int>(sequence.tokens.size()));
  if (sequence.sends()) {
    ++sequence.completion_tokens;
    sequence.tokens.push_back(token);
    sequence.first_text = sequence.text.push(token) + sequence.text.finish();
    finish_sending(sequence);
    return;
  }
  start_decoding(sequence);
  accept_token(sequence, token);
}

void EngineImpl::start_decoding(Sequence& sequence) {
  sequence.state = Sequence::State::kDecode;
  sequence.phase_start = SteadyClock::now();
}

void EngineImpl::accept_token(Sequence& sequence, std::int32_t token) {
  ++sequence.completion_tokens;
  sequence.tokens.push_back(token);
  const std::vector<std::int32_t>& eos = model_.config().eos;
  const bool end = std::find(eos.begin(), eos.end(), token) != eos.end();
  if (end && !sequence.request.ignore_eos) {
    conclude(sequence, FinishReason::kStop, {});
    return;
  }
  Update update;
  update.tokens.push_back(token);
  update.text = sequence.text.push(token);
  tell(sequence, std::move(update));
  if (sequence.text.stopped()) {
    conclude(sequence, FinishReason::kStop, {});
  } else if (sequence.completion_tokens == sequence.request.max_tokens) {
    conclude(sequence, FinishReason::kLength, {});
  }
}

}  // namespace kvlane
