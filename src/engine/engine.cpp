// The engine's public face, its inbox and its loop.
// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "cpu/parallel.h"
#include "engine/engine_impl.h"

namespace kvlane {
namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, const Tokenizer& tokenizer,
                                               Endpoint* endpoint, EngineOptions options) {
  if (options.chunk_tokens < 1 || options.sequences_max < 1 || options.queued_max < 0) {
    return invalid_argument("chunk_tokens and sequences_max must be at least 1");
  }
  KVLANE_ASSIGN(const Codec* codec, find_codec(options.kv_codec));
  KVLANE_ASSIGN(BlockPool pool, BlockPool::create(model.config().kv_shape(), options.kv_bytes));
  KVLANE_ASSIGN(
      std::unique_ptr<Forward> forward,
      Forward::create(model, options.chunk_tokens + options.sequences_max, options.sequences_max));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(
      model, tokenizer, endpoint, std::move(options), std::move(pool), std::move(forward), *codec));
}

EngineImpl::EngineImpl(const Model& model, const Tokenizer& tokenizer, Endpoint* endpoint,
                       EngineOptions options, BlockPool pool, std::unique_ptr<Forward> forward,
                       const Codec& codec)
    : model_(model),
      tokenizer_(tokenizer),
      endpoint_(endpoint),
      options_(std::move(options)),
      codec_(codec),
      pool_(std::move(pool)),
      forward_(std::move(forward)) {
  slots_.reserve(options_.sequences_max);
  spans_.reserve(options_.sequences_max);
  if (endpoint_ != nullptr) {
    sender_ = std::make_unique<KvSender>(pool_, model.identity(), kv_format(), codec_);
  }
  publish_load();
  thread_ = std::thread([this] { loop(); });
}

EngineImpl::~EngineImpl() {
  inbox_->stop();
  thread_.join();
}

Status EngineImpl::validate(const GenerationRequest& request) const {
  const int prompt = static_cast<int>(request.prompt.size());
  if (prompt == 0) return invalid_argument("the prompt has no tokens");
  if (prompt >= model_.context()) {
    return invalid_argument("the prompt has " + std::to_string(prompt) +
                            " tokens, the model's context of " + std::to_string(model_.context()) +
                            " leaves no room for an answer");
  }
  for (const std::int32_t token : request.prompt) {
    if (token < 0 || token >= model_.config().vocab) {
      return invalid_argument("token " + std::to_string(token) + " is not in the vocabulary of " +
                              std::to_string(model_.config().vocab));
    }
  }
  if (request.max_tokens < 1 || request.max_tokens > model_.context() - prompt) {
    return invalid_argument("max_tokens " + std::to_string(request.max_tokens) +
                            " is not between 1 and " + std::to_string(model_.context() - prompt) +
                            ", what the context of " + std::to_string(model_.context()) +
                            " leaves after a prompt of " + std::to_string(prompt));
  }
  const SamplingParams& sampling = request.sampling;
  if (!(sampling.temperature >= 0) || std::isinf(sampling.temperature)) {
    return invalid_argument("temperature must be a finite number, 0 or more");
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return invalid_argument("top_p must be above 0 and at most 1");
  }
  if (sampling.top_k < 0) return invalid_argument("top_k must be 0 (all) or more");
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("a stop string must not be empty");
  }
  if (blocks_for(prompt + request.max_tokens) > pool_.blocks_total()) {
    return invalid_argument(
        "prompt and max_tokens need " + std::to_string(blocks_for(prompt + request.max_tokens)) +
        " KV blocks, the whole KV memory has " + std::to_string(pool_.blocks_total()));
  }
  return {};
}

Result<EngineImpl::SequencePtr> EngineImpl::new_sequence(GenerationRequest request) {
  KVLANE_TRY(validate(request));
  auto sequence =
      std::make_unique<Sequence>(next_id_.fetch_add(1), std::move(request), tokenizer_, pool_);
  sequence->key.seed = sequence->request.seed ? *sequence->request.seed : random_seed();
  sequence->tokens.reserve(sequence->tokens_max());
  return sequence;
}

Result<RequestId> EngineImpl::enqueue(SequencePtr sequence) {
  if (waiting_.fetch_add(1) >= options_.queued_max + options_.sequences_max) {
    waiting_.fetch_sub(1);
    return exhausted("the queue is full: " + std::to_string(options_.queued_max) +
                     " requests are waiting");
  }
  const RequestId id = sequence->id;
  inbox_->post([this, shared = std::make_shared<SequencePtr>(std::move(sequence))] {
    const RequestId key = (*shared)->id;
    live_.emplace(key, std::move(*shared));
  });
  return id;
}

Result<RequestId> EngineImpl::submit(GenerationRequest request, OnUpdate on_update) {
  KVLANE_ASSIGN(SequencePtr sequence, new_sequence(std::move(request)));
  sequence->on_update = std::move(on_update);
  return enqueue(std::move(sequence));
}

Result<RequestId> EngineImpl::prefill_and_push(GenerationRequest request, const Address& peer,
                                               const TransferId& transfer,
                                               OnPrefilled on_prefilled) {
  if (endpoint_ == nullptr) return unsupported("this worker does not send KV");
  KVLANE_ASSIGN(SequencePtr sequence, new_sequence(std::move(request)));
  sequence->journey = Sequence::Journey::kPush;
  sequence->peer = peer;
  sequence->transfer = transfer;
  sequence->on_prefilled = std::move(on_prefilled);
  return enqueue(std::move(sequence));
}

Result<RequestId> EngineImpl::prefill_and_park(GenerationRequest request,
                                               const TransferId& transfer,
                                               OnPrefilled on_prefilled) {
  if (endpoint_ == nullptr) return unsupported("this worker does not send KV");
  KVLANE_ASSIGN(SequencePtr sequence, new_sequence(std::move(request)));
  sequence->journey = Sequence::Journey::kPark;
  sequence->transfer = transfer;
  sequence->on_prefilled = std::move(on_prefilled);
  return enqueue(std::move(sequence));
}

Result<RequestId> EngineImpl::receive(
    SequencePtr sequence, const std::function<Status(std::shared_ptr<TransferSink>)>& start) {
  KVLANE_TRY(seat(*sequence));
  const RequestId id = sequence->id;
  sequence->journey = Sequence::Journey::kReceive;
  sequence->state = Sequence::State::kReceiving;
  sequence->attach_deadline =
      SteadyClock::now() +
      std::chrono::duration_cast<SteadyClock::duration>(options_.reservation_lease);
  auto receiver = std::make_shared<KvReceiver>(
      sequence->table, sequence->prompt_tokens(),
      later(id, [this](Sequence& s, const Result<ReceivedKv>& received) { arrive(s, received); }));
  sequence->receiver = receiver;
  // In this order: what the endpoint reports is posted behind the sequence it is about.
  inbox_->post([this, shared = std::make_shared<SequencePtr>(std::move(sequence))] {
    const RequestId key = (*shared)->id;
    live_.emplace(key, std::move(*shared));
  });
  if (Status status = start(std::move(receiver)); !status.ok()) {
    // The caller hears of it now, so the callback does not.
    later(id, [this](Sequence& s) {
      unseat(s);
      live_.erase(s.id);
    })();
    return status;
  }
  return id;
}

Status EngineImpl::seat(Sequence& sequence) {
  const std::lock_guard lock(pool_mutex_);
  if (seated_ >= options_.sequences_max) {
    return exhausted("all " + std::to_string(options_.sequences_max) +
                     " places of the batch are taken");
  }
  KVLANE_TRY(sequence.table.grow(sequence.tokens_max()));
  ++seated_;
  sequence.seated = true;
  return {};
}

void EngineImpl::unseat(Sequence& sequence) {
  const std::lock_guard lock(pool_mutex_);
  sequence.table.clear();
  seated_ -= sequence.seated;
  sequence.seated = false;
}

Result<RequestId> EngineImpl::reserve(GenerationRequest request, const TransferId& transfer) {
  if (endpoint_ == nullptr) return unsupported("this worker does not receive KV");
  KVLANE_ASSIGN(SequencePtr sequence, new_sequence(std::move(request)));
  sequence->transfer = transfer;
  return receive(std::move(sequence), [&](std::shared_ptr<TransferSink> sink) {
    return endpoint_->expect(transfer, options_.reservation_lease, std::move(sink));
  });
}

Result<RequestId> EngineImpl::fetch_and_decode(GenerationRequest request, const Address& peer,
                                               const TransferId& transfer, OnUpdate on_update) {
  if (endpoint_ == nullptr) return unsupported("this worker does not receive KV");
  KVLANE_ASSIGN(SequencePtr sequence, new_sequence(std::move(request)));
  sequence->transfer = transfer;
  sequence->on_update = std::move(on_update);
  return receive(std::move(sequence), [&](std::shared_ptr<TransferSink> sink) {
    return endpoint_->fetch(peer, transfer, std::move(sink));
  });
}

Status EngineImpl::attach(RequestId request, OnUpdate on_update) {
  inbox_->post([this, request, on_update = std::move(on_update)] {
    const auto found = live_.find(request);
    if (found == live_.end()) {
      Update gone;
      gone.finish.emplace();
      gone.finish->error = not_found("request " + std::to_string(request) +
                                     " is over or its reservation has expired");
      on_update(gone);
      return;
    }
    Sequence& sequence = *found->second;
    sequence.on_update = on_update;
    Update first = std::exchange(sequence.unheard, {});
    if (first.tokens.empty() && first.text.empty() && !first.finish) return;
    const bool over = first.finish.has_value();
    sequence.on_update(first);
    if (over) live_.erase(request);
  });
  return {};
}

void EngineImpl::abort(RequestId request) {
  later(request, [this, request](Sequence& s) {
    fail(s, aborted("the request was aborted"));
    // Whoever gave a reservation up will not come to hear of it.
    const auto found = live_.find(request);
    if (found != live_.end() && found->second->unheard.finish) live_.erase(found);
  })();
}

EngineLoad EngineImpl::load() const {
  const std::lock_guard lock(load_mutex_);
  return load_;
}

void EngineImpl::wait_idle() { inbox_->wait_idle(); }

void EngineImpl::loop() {
  if (options_.threads > 0) set_parallel_threads(options_.threads);
  std::vector<Inbox::Command> commands;
  bool worked = false;
  while (!inbox_->stopped()) {
    // Without work, look up now and then for reservations that nobody came for.
    inbox_->take(commands, Seconds(worked ? 0 : 1), live_.empty());
    for (const Inbox::Command& command : commands) command();
    commands.clear();
    expire_unattached();
    admit();
    worked = step();
    publish_load();
  }
  shut_down();
}

// Nobody computes any more: ends what is left, then waits for the sender to let go of its blocks.
void EngineImpl::shut_down() {
  std::vector<Inbox::Command> commands;
  inbox_->take(commands, Seconds(0), false);
  do {
    for (const Inbox::Command& command : commands) command();
    commands.clear();
    std::vector<RequestId> ids;
    for (const auto& [id, sequence] : live_) ids.push_back(id);
    for (const RequestId id : ids) {
      const auto found = live_.find(id);
      if (found == live_.end()) continue;
      fail(*found->second, aborted("the engine is shutting down"));
    }
    std::erase_if(live_,
                  [](const auto& entry) { return entry.second->unheard.finish.has_value(); });
    if (!live_.empty()) inbox_->take(commands, Seconds(0.01), false);
  } while (!live_.empty());
  inbox_->close();
}

void EngineImpl::publish_load() {
  EngineLoad load;
  for (const auto& [id, sequence] : live_) {
    const bool queued = sequence->state == Sequence::State::kQueued;
    load.queued += queued ? 1 : 0;
    load.running += queued ? 0 : 1;
    if (queued || sequence->state == Sequence::State::kPrefill) {
      load.queued_tokens += sequence->prompt_tokens() - sequence->table.tokens();
    }
  }
  load.blocks_total = pool_.blocks_total();
  {
    const std::lock_guard lock(pool_mutex_);
    load.blocks_free = pool_.blocks_free();
  }
  const std::lock_guard lock(load_mutex_);
  load_ = load;
}

void EngineImpl::tell(Sequence& sequence, Update update) {
  if (sequence.on_update) {
    if (!update.tokens.empty() || !update.text.empty() || update.finish) sequence.on_update(update);
    return;
  }
  Update& unheard = sequence.unheard;
  unheard.tokens.insert(unheard.tokens.end(), update.tokens.begin(), update.tokens.end());
  unheard.text += update.text;
  unheard.ended = update.ended;
  if (update.finish) unheard.finish = std::move(update.finish);
}

void EngineImpl::conclude(Sequence& sequence, FinishReason reason, const Status& error) {
  using State = Sequence::State;
  if (sequence.state == State::kQueued) waiting_.fetch_sub(1);
  if (sequence.state == State::kDecode)
    sequence.account.decode = seconds_since(sequence.phase_start);
  unseat(sequence);
  Finish finish{.error = error,
                .prompt_tokens = sequence.prompt_tokens(),
                .completion_tokens = sequence.completion_tokens,
                .account = sequence.account,
                .kv = sequence.kv};
  if (sequence.on_prefilled) {
    PrefillOutcome outcome{.finish = std::move(finish), .first = {}};
    if (error.ok()) outcome.first = {{sequence.tokens.back(), sequence.first_text, {}}};
    sequence.on_prefilled(outcome);
    live_.erase(sequence.id);
    return;
  }
  const bool heard = static_cast<bool>(sequence.on_update);
  Update last;
  if (error.ok()) {
    if (!sequence.text.stopped()) last.text = sequence.text.finish();
    last.ended = reason;
  }
  last.finish = std::move(finish);
  // A sequence that nobody attached to yet stays, without blocks, to be told; see
  // expire_unattached.
  sequence.state = State::kReceiving;
  tell(sequence, std::move(last));
  if (heard) live_.erase(sequence.id);
}

void EngineImpl::expire_unattached() {
  std::vector<Sequence*> expired;
  const TimePoint now = SteadyClock::now();
  for (const auto& [id, sequence] : live_) {
    if (sequence->journey == Sequence::Journey::kReceive && !sequence->on_update &&
        sequence->attach_deadline < now) {
      expired.push_back(sequence.get());
    }
  }
  for (Sequence* sequence : expired) {
    const RequestId id = sequence->id;
    if (!sequence->unheard.finish) {
      fail(*sequence, timed_out("nobody asked for this answer in time"));
    }
    live_.erase(id);
  }
}

}  // namespace kvlane
