// A cluster that answers requests: prefill and decode replicas, a network between them, or replicas
// that do both.
//
// What decides is what decides in the product: plan/routing, plan/batching, plan/admission. What
// takes time is sim/step_cost and sim/network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "plan/account.h"
#include "sim/replica.h"

namespace kvlane {

// Replicas of one kind.
struct ReplicaGroup {
  int count = 0;
  Gpu gpu{};
  Parallelism parallel;
  ReplicaLimits limits;  // blocks follow from memory
  // Bytes a second of each replica's part of its servers' network, in each direction.
  double network_rate = 0;
};

struct ClusterSetting {
  SimModel model;
  KvCosts kv;
  StepOverheads overheads;
  ReplicaGroup prefill;  // without any, those of `decode` compute prompts, too
  ReplicaGroup decode;
  // Of one request's transfer alone, in bytes a second.
  double flow_rate_max = std::numeric_limits<double>::infinity();
  bool push_whole = false;    // KV leaves when the prompt is complete, not layer by layer
  double memory_share = 0.9;  // of GPUs' memory, for weights and KV
};

struct SimRequest {
  double arrival = 0;  // seconds
  int prompt_tokens = 1;
  int answer_tokens = 1;
  SimBlockNames names = {};  // of its prompt, as far as others may begin like it
};

struct SimRecord {
  bool fits = true;        // false: no replica has blocks for it; everything else is 0
  double first_token = 0;  // seconds from its arrival
  double completion = 0;   // likewise, until the last one
  TimeAccount account;     // adds up to `completion`
};

struct GroupUse {
  double busy = 0;         // share of the time in which a first stage computed; mean of replicas
  double busy_most = 0;    // of the replica that computed the most
  double network = 0;      // share in which a port carried something
  double blocks_peak = 0;  // share of blocks, of the replica that took the most
  std::int64_t tokens_in_memory = 0;  // that the blocks of a replica are for
  std::int64_t steps = 0;
  std::int64_t found = 0;    // tokens that replicas had of prompts before
  std::int64_t stopped = 0;  // sequences that gave their blocks back to others
};

struct SimOutcome {
  std::vector<SimRecord> records;  // of each request, in their order
  double seconds = 0;              // from 0 until the last token
  double wire_bytes = 0;
  GroupUse prefill;
  GroupUse decode;
};

// requests: ascending in arrival. progress: called now and then with the number of requests that
// ended; may be empty. kInvalidArgument when weights do not fit, a group is empty or impossible,
// or all of it takes kSimSecondsMax.
// The same input gives the same outcome on every machine with IEEE-754 arithmetic.
Result<SimOutcome> simulate(const ClusterSetting& setting, std::span<const SimRequest> requests,
                            const std::function<void(std::size_t)>& progress);

}  // namespace kvlane
