// One copy of a model that computes steps: who waits, who runs, and what a step carries, by the
// engine's own rules (src/plan).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "plan/admission.h"
#include "plan/batching.h"
#include "sim/event_queue.h"
#include "sim/prefix_cache.h"
#include "sim/step_cost.h"

namespace kvlane {

struct ReplicaLimits {
  int blocks = 0;  // of kBlockTokens tokens, for KV
  int batch_tokens_max = 2048;
  int sequences_max = 256;
  double slowdown_max = 2;  // of answers by prompts, see plan/batching.h
};

// One request in one replica.
struct SimSequence {
  int request = 0;           // its number; arrivals are in this order
  int known = 0;             // tokens that are to be computed: the prompt, then each answer's token
  int computed = 0;          // of these
  int tokens_to_go = 0;      // that it will be given here; more than 0
  int blocks = 0;            // that it holds
  bool busy = false;         // in a step whose outcome the next one needs
  bool started = false;      // once, before it may have been stopped
  SimBlockNames names = {};  // of its prompt
  std::vector<std::uint64_t> held = {};  // of these, those that blocks of its own have

  int missing() const { return known - computed; }
};

// A step under way. Stages of a pipeline hand it on, so the next one may begin before it ends.
struct SimStep {
  struct Part {
    int request = 0;
    int tokens = 0;
    int context = 0;       // in its cache before
    bool answers = false;  // its sequence gets a token at the end
  };
  std::vector<Part> parts;
  StepTime time;
  SimTime stage = 0;  // that each stage takes
};

// What became of sequences when a step ended: numbers of requests, in the step's order.
struct StepOutcome {
  std::vector<int> answered;  // got a token
  std::vector<int> ended;     // of these, those that have all theirs; they are gone
};

// Not thread-safe. Who owns it asks for a step whenever the first stage is free and something was
// added or ended.
class Replica {
 public:
  Replica(const StepCost& cost, const Parallelism& parallel, const ReplicaLimits& limits)
      : cost_(cost), stages_(parallel.pipeline), limits_(limits), pool_(limits.blocks) {}

  // It waits its turn, and gets blocks when that comes.
  void add(const SimSequence& sequence);
  // Room for the KV of `tokens` tokens that another replica computes, beside what running answers
  // may soon take; false: not now.
  bool reserve(int tokens);
  // A sequence whose KV came into reserved room: it runs, or waits for a place among those that do.
  void adopt(SimSequence sequence);

  // The next step, which begins now; no parts: nobody can run. The caller ends each in their order.
  SimStep begin();
  StepOutcome end(const SimStep& step);

  // For routing: tokens that are not computed yet, and sequences.
  std::int64_t queued_tokens() const;
  int sequences() const {
    return static_cast<int>(waiting_.size() + adopted_.size() + running_.size());
  }
  int blocks_free() const { return pool_.available(); }
  int blocks_peak() const { return pool_.peak(); }
  // Tokens that sequences found when they first began, and need not be computed.
  std::int64_t found() const { return found_; }
  int stopped() const { return stopped_; }  // times that a sequence had to give its blocks back
  const ReplicaLimits& limits() const { return limits_; }
  const StepCost& cost() const { return cost_; }

 private:
  int growing() const;
  void wait(std::deque<SimSequence>& queue, const SimSequence& sequence);
  void start_waiting();
  void grow();
  void stop_last();
  bool start(SimSequence& sequence);
  void publish(SimSequence& sequence, int context);
  void give_back(SimSequence& sequence);

  StepCost cost_;
  int stages_;
  ReplicaLimits limits_;
  // All in order of requests. Who is adopted has blocks.
  std::deque<SimSequence> waiting_;
  std::deque<SimSequence> adopted_;
  std::vector<SimSequence> running_;
  std::int64_t waiting_tokens_ = 0;  // missing of those who wait, adopted or not
  StepPace pace_;
  unsigned turn_ = 0;
  PrefixCache pool_;
  std::int64_t found_ = 0;
  int stopped_ = 0;
};

}  // namespace kvlane
