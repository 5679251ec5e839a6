// Steps of a replica.
// SPDX-License-Identifier: Apache-2.0
#include "sim/replica.h"

#include <algorithm>
#include <span>
#include <utility>

#include "format/shape.h"

namespace kvlane {
namespace {

bool comes_before(const SimSequence& one, const SimSequence& other) {
  return one.request < other.request;
}

void insert_in_order(auto& sequences, const SimSequence& sequence) {
  sequences.insert(std::upper_bound(sequences.begin(), sequences.end(), sequence, comes_before),
                   sequence);
}

}  // namespace

void Replica::wait(std::deque<SimSequence>& queue, const SimSequence& sequence) {
  waiting_tokens_ += sequence.missing();
  insert_in_order(queue, sequence);
}

void Replica::add(const SimSequence& sequence) { wait(waiting_, sequence); }

bool Replica::reserve(int tokens) {
  // Who was stopped for want of blocks goes first.
  if (!waiting_.empty() || !may_start(blocks_for(tokens), blocks_free(), growing())) return false;
  pool_.take(blocks_for(tokens));
  return true;
}

void Replica::adopt(SimSequence sequence) {
  sequence.blocks = blocks_for(sequence.known);
  wait(adopted_, sequence);
}

int Replica::growing() const {
  return static_cast<int>(
      std::count_if(running_.begin(), running_.end(),
                    [](const SimSequence& each) { return each.tokens_to_go > 1; }));
}

// Blocks for all that is known of it, if there are: those that were there before, and new ones.
bool Replica::start(SimSequence& sequence) {
  std::span<const std::uint64_t> names;
  if (sequence.names) names = *sequence.names;
  // One token is computed in any case: its logits are wanted.
  const auto most = static_cast<std::size_t>((sequence.known - 1) / kBlockTokens);
  names = names.first(std::min(names.size(), most));
  const int found = pool_.known(names);
  names = names.first(static_cast<std::size_t>(found));
  sequence.blocks = blocks_for(sequence.known);
  const int fresh = sequence.blocks - found;
  if (!may_start(fresh + pool_.unowned(names), blocks_free(), growing())) {
    sequence.blocks = 0;
    return false;
  }
  pool_.hold(names);
  pool_.take(fresh);
  sequence.held.assign(names.begin(), names.end());
  waiting_tokens_ -= sequence.missing();
  sequence.computed = found * kBlockTokens;
  // What a stopped one finds again is its own.
  if (!sequence.started) found_ += sequence.computed;
  sequence.started = true;
  return true;
}

// What a step computes may be found by all steps behind it, which come to no stage before it.
void Replica::publish(SimSequence& sequence, int context) {
  if (!sequence.names) return;
  const auto end = std::min(sequence.names->size(), std::size_t(sequence.computed / kBlockTokens));
  for (std::size_t i = context / kBlockTokens; i < end; ++i) {
    const std::uint64_t name = (*sequence.names)[i];
    if (pool_.publish(name)) sequence.held.push_back(name);
  }
}

void Replica::give_back(SimSequence& sequence) {
  pool_.give_back(sequence.held, sequence.blocks - static_cast<int>(sequence.held.size()));
  sequence.held.clear();
  sequence.blocks = 0;
}

// In order: who is first and finds no room is not overtaken, but by those who have theirs.
void Replica::start_waiting() {
  bool full = false;
  while (static_cast<int>(running_.size()) < limits_.sequences_max) {
    const bool fresh = !full && !waiting_.empty() &&
                       (adopted_.empty() || comes_before(waiting_.front(), adopted_.front()));
    if (!fresh && adopted_.empty()) return;
    std::deque<SimSequence>& queue = fresh ? waiting_ : adopted_;
    if (!fresh) {
      waiting_tokens_ -= queue.front().missing();
    } else if (!start(queue.front())) {
      full = true;
      continue;
    }
    insert_in_order(running_, queue.front());
    queue.pop_front();
  }
}

void Replica::stop_last() {
  const auto last = std::find_if(running_.rbegin(), running_.rend(),
                                 [](const SimSequence& each) { return !each.busy; });
  SimSequence stopped = *last;
  running_.erase(std::next(last).base());
  give_back(stopped);
  stopped.computed = 0;
  ++stopped_;
  wait(waiting_, stopped);
}

// Blocks for the next token of everybody who may run; who is last in rank gives way.
void Replica::grow() {
  for (std::size_t i = 0; i < running_.size();) {
    const int request = running_[i].request;
    const int more = blocks_for(running_[i].known) - running_[i].blocks;
    if (running_[i].busy || more <= 0 || more <= blocks_free()) {
      if (!running_[i].busy && more > 0) {
        pool_.take(more);
        running_[i].blocks += more;
      }
      ++i;
      continue;
    }
    stop_last();
    // That was somebody behind, or the sequence itself.
    if (i < running_.size() && running_[i].request != request) continue;
  }
}

SimStep Replica::begin() {
  start_waiting();
  grow();
  if (running_.empty()) {
    // The only one that ran gave way to others, who may now have its place.
    start_waiting();
    grow();
  }
  std::vector<std::size_t> chosen;
  std::vector<int> missing;
  int answers = 0;
  // With several stages each step takes its part of the answers, so that all stages have some.
  const auto growers = std::count_if(running_.begin(), running_.end(),
                                     [](const SimSequence& each) { return each.missing() <= 1; });
  const auto answers_max = (growers + stages_ - 1) / stages_;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].busy) continue;
    const bool answer = running_[i].missing() == 1;
    if (answer && answers == answers_max) continue;
    answers += answer ? 1 : 0;
    chosen.push_back(i);
    missing.push_back(running_[i].missing());
  }
  std::vector<int> tokens(chosen.size());
  share_step(missing, prompt_budget(pace_, answers, limits_.slowdown_max, limits_.batch_tokens_max),
             turn_++, tokens);
  SimStep step;
  std::vector<StepPart> parts;
  int prompt_tokens = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (tokens[i] == 0) continue;
    SimSequence& sequence = running_[chosen[i]];
    if (missing[i] > 1) prompt_tokens += tokens[i];
    const int context = std::exchange(sequence.computed, sequence.computed + tokens[i]);
    // The next part of a prompt may follow its last one through the stages; a token must be known.
    sequence.busy = sequence.missing() == 0;
    publish(sequence, context);
    parts.push_back({tokens[i], context, sequence.busy});
    step.parts.push_back({sequence.request, tokens[i], context, sequence.busy});
  }
  if (parts.empty()) return step;
  step.time = cost_.of(parts);
  // Of all stages together no more than a simulation may last.
  step.stage = to_sim_time(std::min(step.time.total(), kSimSecondsMax) / stages_);
  pace_ = learn(pace_, {answers, prompt_tokens, step.time.total()});
  return step;
}

StepOutcome Replica::end(const SimStep& step) {
  StepOutcome outcome;
  for (const SimStep::Part& part : step.parts) {
    if (!part.answers) continue;
    const auto found = std::lower_bound(running_.begin(), running_.end(),
                                        SimSequence{.request = part.request}, comes_before);
    outcome.answered.push_back(part.request);
    found->busy = false;
    if (--found->tokens_to_go > 0) {
      ++found->known;
      continue;
    }
    outcome.ended.push_back(part.request);
    give_back(*found);
    running_.erase(found);
  }
  return outcome;
}

std::int64_t Replica::queued_tokens() const {
  std::int64_t tokens = waiting_tokens_;
  // The one token that an answer computes next is no queue.
  for (const SimSequence& each : running_) tokens += std::max(0, each.missing() - 1);
  return tokens;
}

}  // namespace kvlane
