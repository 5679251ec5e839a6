// `kvlane simulate`: one workload on one cluster, with several KV formats in turn.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/serve_workload.h"
#include "bench/simulated_kv.h"
#include "bench/statistics.h"
#include "sim/cluster.h"

namespace kvlane {

// Requests of a plan, in order of their times. kUnsupported where a conversation has several
// requests: the later ones depend on answers.
Result<std::vector<SimRequest>> simulated_requests(const Workload& workload);

// What one format came to. Latencies in seconds, of the requests that fit.
struct SimulationResult {
  SimulatedKv kv;
  std::size_t completed = 0;
  std::size_t refused = 0;  // no replica has room for so long a request
  Summary completion;       // with percentiles 50, 90 and 99, as all three
  Summary ttft;
  Summary tpot;         // a token behind the first
  TimeAccount account;  // means, which add up to that of completions
  double tokens = 0;    // of answers, a second
  SimOutcome outcome;   // without its records
};

SimulationResult summarise_simulation(const SimulatedKv& kv, std::span<const SimRequest> requests,
                                      SimOutcome outcome);

struct SimulationSetting {
  std::string model;  // its name
  ClusterSetting cluster;
  std::string workload;
  std::vector<SimRequest> requests;
  std::string command;
};

// Tables for a person, and one JSON object.
std::string simulation_text(const SimulationSetting& setting,
                            std::span<const SimulationResult> results);
std::string simulation_json(const SimulationSetting& setting,
                            std::span<const SimulationResult> results);

}  // namespace kvlane
