// The engine's loop, and how requests end.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cpu/parallel.h"
#include "engine/engine_impl.h"

namespace kvlane {

void EngineImpl::loop() {
  if (options_.threads > 0) set_parallel_threads(options_.threads);
  std::vector<Inbox::Command> commands;
  bool worked = false;
  while (!inbox_->stopped()) {
    // Without work, look up now and then for reservations that nobody came for.
    inbox_->take(commands, Seconds(worked ? 0 : 1), live_.empty());
    for (const Inbox::Command& command : commands) command();
    // Who has just heard of an end finds it in the figures, however long the next pass takes.
    if (!commands.empty()) publish_load();
    commands.clear();
    expire_unattached();
    worked = step();
    dead_.clear();
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
    std::vector<Request*> requests;
    for (const auto& [id, request] : live_) requests.push_back(request.get());
    for (Request* request : requests) {
      fail(*request, aborted("the engine is shutting down"));
      if (request->over) bury(*request);
    }
    dead_.clear();
    if (!live_.empty()) inbox_->take(commands, Seconds(0.01), false);
  } while (!live_.empty());
  inbox_->close();
}

void EngineImpl::publish_load() {
  EngineLoad load = totals_;
  load.queued = static_cast<int>(queued_.size());
  load.running = places_taken();
  for (const auto* waiting : {&queued_, &restoring_}) {
    for (const Sequence* sequence : *waiting) load.queued_tokens += sequence->missing();
  }
  for (const Sequence* sequence : running_) {
    if (sequence->missing() > 1) load.queued_tokens += sequence->missing();
  }
  load.blocks_total = pool_.blocks_total();
  load.blocks_free = pool_.blocks_free();
  load.blocks_cached = pool_.blocks_cached();
  load.host_blocks = arena_.blocks_used();
  if (sender_) {
    load.codebooks_counted = sender_->planes_counted();
    load.codebooks_replaced = sender_->codebooks_replaced();
  }
  if (keeper_) {
    load.save_failures += keeper_->failed();
    load.hidden_tokens_lost = keeper_->hidden_tokens_lost();
  }
  const std::lock_guard lock(load_mutex_);
  load_ = load;
}

void EngineImpl::tell(Request& request, Update update) {
  if (update.tokens.empty() && update.text.empty() && !update.ended && !update.finish) return;
  if (request.on_update) {
    request.on_update(update);
  } else if (!request.on_prefilled) {
    request.unheard.push_back(std::move(update));
  }
}

// One answer is complete; with the last one the request is over.
void EngineImpl::end_answer(Sequence& sequence, FinishReason reason) {
  Request& request = sequence.request;
  leave(sequence);
  Update update;
  update.choice = sequence.choice;
  if (!sequence.text.stopped()) update.text = sequence.text.finish();
  // What was held back of a character that never became whole may be a stop string's end.
  update.ended = sequence.text.stopped() ? FinishReason::kStop : reason;
  if (++request.answers_over < request.generation.n) {
    tell(request, std::move(update));
    return;
  }
  conclude(request, sequence, std::move(update), {});
}

// The last thing a request hears. `last` is the answer whose account counts.
void EngineImpl::conclude(Request& request, Sequence& last, Update update, Status error) {
  for (const auto& sequence : request.sequences) leave(*sequence);
  last.enter(&TimeAccount::other);
  Finish& finish = update.finish.emplace();
  finish.error = std::move(error);
  finish.prompt_tokens = request.prompt_tokens();
  finish.cached_tokens = request.cached_tokens;
  for (const auto& sequence : request.sequences) {
    finish.completion_tokens += sequence->completion_tokens;
  }
  finish.account = last.account;
  finish.kv = request.kv;
  request.over = true;
  shares_.leave(request.generation.client);
  if (request.on_prefilled) {
    PrefillOutcome outcome{.finish = std::move(finish), .first = {}};
    if (outcome.finish.error.ok()) outcome.first = std::move(request.first);
    request.on_prefilled(outcome);
    bury(request);
    return;
  }
  const bool heard = static_cast<bool>(request.on_update);
  tell(request, std::move(update));
  // One that nobody attached to yet stays, without blocks, to be told; see expire_unattached.
  if (heard) bury(request);
}

// Ends a request wherever it is. One on its way out lives on until the sender has let go of it.
void EngineImpl::fail(Request& request, const Status& why) {
  if (request.over) return;
  if (request.receiver != nullptr) {
    // From here on its blocks are ours again.
    endpoint_->cancel(request.transfer, *request.receiver);
    request.receiver.reset();
  }
  if (request.job == nullptr) {
    conclude(request, request.prompt(), {}, why);
    return;
  }
  if (request.journey_status.ok()) request.journey_status = why;
  request.job->cancel();
  if (request.prompt().state != Sequence::State::kSending) {
    finish_sending(request);  // a cancelled job sends nothing more, it only reports its end
  } else {
    settle(request);
  }
}

// Out of the house; its memory goes at the end of this turn.
void EngineImpl::bury(Request& request) {
  if (!request.over) {
    for (const auto& sequence : request.sequences) leave(*sequence);
    shares_.leave(request.generation.client);
    request.over = true;
  }
  const auto found = live_.find(request.id);
  if (found == live_.end()) return;
  dead_.push_back(std::move(found->second));
  live_.erase(found);
}

void EngineImpl::expire_unattached() {
  std::vector<Request*> expired;
  const TimePoint now = SteadyClock::now();
  for (const auto& [id, request] : live_) {
    if (request->journey == Request::Journey::kReceive && !request->on_update &&
        request->attach_deadline < now) {
      expired.push_back(request.get());
    }
  }
  for (Request* request : expired) {
    fail(*request, timed_out("nobody asked for this answer in time"));
    bury(*request);
  }
}

}  // namespace kvlane
