// One step of the engine: choose a batch, compute it, take up what came out.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_set>

#include "cpu/parallel.h"
#include "engine/engine_impl.h"

namespace kvlane {
namespace {

using State = Sequence::State;

// Logits that take some tens of microseconds to draw from.
constexpr std::int64_t kParallelLogitsMin = 1 << 15;

bool contains(const std::vector<std::int32_t>& tokens, std::int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

// False when there was nothing to do.
bool EngineImpl::step() {
  const TimePoint start = SteadyClock::now();
  outside_seconds_ = 0;
  admit();
  make_room();
  const bool restored = advance_restores();
  if (!choose_batch()) return restored || !dead_.empty();
  PassHooks hooks;
  if (slabs_leave()) hooks.on_layer = layer_done_;
  gather_hidden(hooks);
  rows_seconds_ = 0;
  const auto has_axes = [](const Slot& slot) { return slot.sequence->axes != nullptr; };
  if (std::ranges::any_of(slots_, has_axes)) hooks.before_attention = rows_wanted_;
  const Status status = forward_->run(spans_, hooks);
  outside_seconds_ += forward_->times().total;
  if (!status.ok()) {
    for (const Slot& slot : slots_) fail(slot.sequence->request, status);
    return true;
  }
  after_pass();
  const double seconds = seconds_since(start);
  // Of the answers that there are, those that had room for a token.
  int tokens = 0, answers = 0;
  for (const Slot& slot : slots_) {
    tokens += slot.tokens;
    answers += slot.wants_logits && slot.tokens == 1 ? 1 : 0;
  }
  pace_ = learn(pace_, {answers, tokens - answers, seconds - restore_seconds_});
  ++totals_.steps;
  totals_.step_seconds += seconds;
  totals_.schedule_seconds += seconds - outside_seconds_;
  return true;
}

// Who gets how many tokens; see plan/batching.h.
bool EngineImpl::choose_batch() {
  slots_.clear();
  spans_.clear();
  gather_batch();
  shares_of_step_.resize(missing_.size());
  // Restores have had their part of what answers may be slowed down by.
  const double slowdown = pace_.answer_seconds > 0
                              ? options_.slowdown_max - restore_seconds_ / pace_.answer_seconds
                              : options_.slowdown_max;
  const int budget =
      prompt_budget(pace_, answers_in_step_, std::max(slowdown, 1.0), options_.chunk_tokens);
  share_step(missing_, budget, static_cast<unsigned>(totals_.steps), shares_of_step_);
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    Sequence& sequence = *batch_[i];
    int tokens = shares_of_step_[i];
    if (!sequence.evicted()) {
      // Fewer where rows of a coded cache are short; make_room() saw to one.
      tokens = std::min({tokens, sequence.table.tokens_with_rows(),
                         sequence.table_tokens() - sequence.table.tokens()});
      (void)sequence.table.open_rows(sequence.table.tokens() + tokens);
    }
    // What comes behind the prompt reads rows that were made of its coefficients, whoever had to
    // stop and is computed again included.
    if (options_.online_axes > 0 && !sequence.axes) {
      tokens = std::min(tokens, sequence.request.prompt_tokens() - sequence.computed());
    }
    if (tokens == 0) continue;
    const bool wants_logits = tokens == missing_[i];
    const std::int32_t* first = sequence.tokens.data() + sequence.computed();
    slots_.push_back({&sequence, tokens, wants_logits, {}});
    spans_.push_back({&sequence.table,
                      {first, std::size_t(tokens)},
                      wants_logits,
                      wants_logits && takes_best(sequence),
                      sequence.sparse ? &*sequence.sparse : nullptr});
    shares_.charge(sequence.request.generation.client, tokens);
  }
  return !slots_.empty();
}

// Whether the next token is the most likely one, and nobody asks how likely it is.
bool EngineImpl::takes_best(const Sequence& sequence) const {
  const GenerationRequest& generation = sequence.request.generation;
  return takes_best_logit(generation.sampling) && !generation.logprobs &&
         sequence.completion_tokens >= generation.min_tokens;
}

// All that run, except who would compute a block that another one is computing just now: it waits
// for that. So of many prompts that begin alike and come at once, one is computed.
void EngineImpl::gather_batch() {
  batch_.clear();
  missing_.clear();
  answers_in_step_ = 0;
  std::unordered_set<BlockName, BlockNameHash> under_way;
  for (Sequence* sequence : running_) {
    adopt_what_others_computed(*sequence);
    const std::size_t next = sequence->table.tokens() / kBlockTokens;
    const bool named =
        shares_blocks() && sequence->missing() > 1 && next < sequence->names.all().size();
    const bool begun = sequence->table.tokens() % kBlockTokens != 0;
    if (named && !under_way.insert(sequence->names.all()[next]).second && !begun) continue;
    batch_.push_back(sequence);
    missing_.push_back(sequence->missing());
    answers_in_step_ += missing_.back() == 1 ? 1 : 0;
  }
}

// Whether anybody waits for the layers of this pass.
bool EngineImpl::slabs_leave() const {
  return !options_.push_whole && std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.sequence->request.job != nullptr;
  });
}

// Slabs that this pass completed leave while the next layer is computed.
void EngineImpl::on_layer(int layer, const std::shared_ptr<const DeviceMark>& done) {
  for (const Slot& slot : slots_) {
    Request& request = slot.sequence->request;
    if (request.job == nullptr) continue;
    const int tokens = slot.sequence->table.tokens() + slot.tokens;
    hand_over(request, layer, slot.wants_logits ? blocks_for(tokens) : tokens / kBlockTokens, done);
  }
}

void EngineImpl::restore_rows(int layer) {
  const ScopedTimer timer(rows_seconds_);
  for (const Slot& slot : slots_) {
    const Sequence& sequence = *slot.sequence;
    if (sequence.axes) sequence.axes->restore_rows(sequence.table, layer);
  }
}

void EngineImpl::after_pass() {
  const TimePoint start = SteadyClock::now();
  draw();
  outside_seconds_ += seconds_since(start);
  const ForwardTimes& times = forward_->times();
  for (Slot& slot : slots_) {
    Sequence& sequence = *slot.sequence;
    if (sequence.state != State::kRunning) continue;  // a callback of another one ended it
    if (sequence.interval == &TimeAccount::prefill) {
      sequence.account.prefill_attention += times.attention - times.dequantise;
      sequence.account.prefill_quantise += times.quantise;
      sequence.account.prefill_dequantise += times.dequantise + rows_seconds_;
    } else if (sequence.interval == &TimeAccount::decode) {
      sequence.account.decode_attention += times.attention - times.dequantise;
      sequence.account.decode_dequantise += times.dequantise + rows_seconds_;
    }
    if (const Status status = end_prompt(sequence); !status.ok()) {
      fail(sequence.request, status);
      continue;
    }
    publish_blocks(sequence);
    give_back_unseen(sequence);
    if (sequence.request.job != nullptr && !options_.push_whole) {
      int& sent = sequence.request.blocks_sent;
      sent = std::max(sent, sequence.table.tokens() / kBlockTokens);
    }
    if (!slot.wants_logits) continue;  // more of the prompt is to come
    if (sequence.completion_tokens == 0) {
      answer_prompt(sequence, slot.drawn);
    } else {
      sequence.enter(&TimeAccount::decode);
      accept(sequence, slot.drawn.front().token, std::move(slot.drawn.front().logprobs));
    }
  }
}

// Where tokens are evicted or K and V get axes of their own, once the prompt is computed.
Status EngineImpl::end_prompt(Sequence& sequence) {
  if (sequence.table.tokens() != sequence.request.prompt_tokens()) return {};
  if (sequence.sparse && !sequence.evicted()) return sequence.sparse->evict(sequence.table);
  if (options_.online_axes == 0 || sequence.axes) return {};
  const TimePoint start = SteadyClock::now();
  KVLANE_ASSIGN(OnlineAxes axes,
                OnlineAxes::decompose(sequence.table, options_.online_axes, model_.isa()));
  sequence.axes = std::make_shared<const OnlineAxes>(std::move(axes));
  const double seconds = seconds_since(start);
  outside_seconds_ += seconds;
  if (sequence.interval == &TimeAccount::prefill) sequence.account.prefill_quantise += seconds;
  return {};
}

// Makes of `to`, which has none, a second sequence with the tokens of `from`; false without room.
bool EngineImpl::copy_blocks(const Sequence& from, Sequence& to) {
  if (from.sparse) return to.sparse->copy(*from.sparse).ok();
  if (!to.table.fork(from.table).ok()) return false;
  to.axes = from.axes;
  return true;
}

// The next token of every sequence that has logits: one, or after a prompt one for each answer.
void EngineImpl::draw() {
  std::vector<std::pair<Slot*, int>> wanted;
  int logits_index = 0;
  for (Slot& slot : slots_) {
    if (slot.wants_logits) wanted.emplace_back(&slot, logits_index++);
  }
  const std::vector<std::int32_t>& eos = model_.config().eos;
  // Waking other threads costs more than a few thousand logits.
  const auto logits_count = static_cast<std::int64_t>(wanted.size()) * model_.config().vocab;
  const ParallelScope scope(logits_count < kParallelLogitsMin ? 1 : parallel_threads());
  parallel_for(static_cast<std::int64_t>(wanted.size()), [&](std::int64_t i) {
    const auto [slot, index] = wanted[i];
    const Sequence& sequence = *slot->sequence;
    const GenerationRequest& generation = sequence.request.generation;
    const int answers = sequence.completion_tokens == 0 ? generation.n : 1;
    if (const std::optional<std::int32_t> best = forward_->best(index)) {
      slot->drawn.resize(answers, {*best, {}, {}});
      return;
    }
    const std::span<float> logits = forward_->logits(index);
    // Log probabilities are the model's own, so they come from the logits as they are.
    std::vector<float> raw;
    if (generation.logprobs) raw.assign(logits.begin(), logits.end());
    std::vector<std::int32_t> banned;
    if (sequence.completion_tokens < generation.min_tokens) {
      banned = generation.stop_tokens;
      if (!generation.ignore_eos) banned.insert(banned.end(), eos.begin(), eos.end());
    }
    const std::span<const std::int32_t> tokens(sequence.tokens);
    const std::size_t prompt = generation.prompt.size();
    adjust_logits(logits, generation.sampling, tokens.first(prompt), tokens.subspan(prompt),
                  banned);
    for (int answer = 0; answer < answers; ++answer) {
      SamplingKey key = sequence.request.key;
      key.choice += static_cast<std::uint32_t>(sequence.choice + answer);
      PrefillOutcome::First drawn;
      drawn.token = sample_token(logits, generation.sampling, key, static_cast<int>(tokens.size()));
      if (generation.logprobs) {
        drawn.logprobs = token_logprobs(raw, drawn.token, *generation.logprobs);
      }
      slot->drawn.push_back(std::move(drawn));
    }
  });
}

// The prompt is computed: its answers begin, here or elsewhere.
void EngineImpl::answer_prompt(Sequence& sequence,
                               const std::vector<PrefillOutcome::First>& first) {
  Request& request = sequence.request;
  if (request.sends()) {
    request.first = first;
    for (PrefillOutcome::First& answer : request.first) {
      OutputText text(tokenizer_, request.generation.stop);
      answer.text = text.push(answer.token) + text.finish();
    }
    sequence.completion_tokens = static_cast<int>(first.size());
    finish_sending(request);
    return;
  }
  sequence.enter(&TimeAccount::decode);
  for (int choice = 1; choice < request.generation.n; ++choice) {
    request.sequences.push_back(new_sequence(request, choice, BlockName{}));
    Sequence& other = *request.sequences.back();
    other.names = sequence.names;
    other.account = sequence.account;
    other.interval = sequence.interval;
    other.interval_start = sequence.interval_start;
    other.published = sequence.published;
    other.saved = sequence.saved;
    const bool place = places_taken() < options_.sequences_max;
    if (place && copy_blocks(sequence, other)) {
      run(other);
    } else {
      other.enter(&TimeAccount::wait_for_memory);
      queue(other);
    }
  }
  for (std::size_t choice = 0; choice < first.size() && !request.over; ++choice) {
    accept(*request.sequences[choice], first[choice].token, first[choice].logprobs);
  }
}

void EngineImpl::accept(Sequence& sequence, std::int32_t token,
                        std::optional<TokenLogprobs> logprobs) {
  const GenerationRequest& generation = sequence.request.generation;
  ++sequence.completion_tokens;
  sequence.tokens.push_back(token);
  const bool end = (contains(model_.config().eos, token) && !generation.ignore_eos) ||
                   contains(generation.stop_tokens, token);
  if (end) {
    end_answer(sequence, FinishReason::kStop);
    return;
  }
  Update update;
  update.choice = sequence.choice;
  update.tokens.push_back(token);
  if (logprobs) update.logprobs.push_back(std::move(*logprobs));
  update.text = sequence.text.push(token, sequence.completion_tokens > generation.min_tokens);
  tell(sequence.request, std::move(update));
  if (sequence.text.stopped()) {
    end_answer(sequence, FinishReason::kStop);
  } else if (sequence.completion_tokens == generation.max_tokens) {
    end_answer(sequence, FinishReason::kLength);
  }
}

// Blocks that are complete now can be found by others.
void EngineImpl::publish_blocks(Sequence& sequence) {
  const int complete = sequence.table.tokens() / kBlockTokens;
  if (!shares_blocks() || complete == sequence.published) return;
  const std::span<const std::int32_t> tokens(sequence.tokens);
  // A name that could not be made is a block that nobody finds.
  if (!sequence.names.extend(tokens.first(sequence.table.tokens())).ok()) return;
  sequence.table.publish(sequence.names.all(), sequence.published);
  complete_hidden(sequence);
  sequence.published = complete;
  save_blocks(sequence);
}

}  // namespace kvlane
