// `kvlane simulate`: one workload on one cluster, with several KV formats in turn.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/serve_result.h"
#include "bench/serve_workload.h"
#include "bench/simulated_kv.h"
#include "bench/statistics.h"
#include "sim/cluster.h"

namespace kvlane {

struct SimulatedWorkload {
  std::vector<SimRequest> requests;  // in order of their times
  std::size_t shortened = 0;         // that were cut, or dropped, to fit the context
};

// kUnsupported where a conversation has several requests: the later ones depend on answers.
Result<SimulatedWorkload> simulated_workload(const Workload& workload);

// What one format came to. Latencies in seconds, of the requests that fit.
struct SimulationResult {
  SimulatedKv kv;
  std::size_t completed = 0;
  std::size_t refused = 0;  // no replica has room for so long a request
  Summary completion;       // with percentiles 50, 90 and 99, as all three
  Summary ttft;
  Summary tpot;            // a token behind the first
  TimeAccount account;     // means, which add up to that of completions
  double tokens = 0;       // of answers, a second
  double rate = 0;         // requests a second, as they arrive; 0: all at once
  bool unbounded = false;  // of find_rate(): all at once reach the goals
  double found = 0;        // share of prompts' tokens that were in memory already
  double good = 0;         // share of all requests that reach the goals; 1 without any
  SimOutcome outcome;      // without its records
};

// goals: as those of `kvlane bench serve`; what is refused reaches none.
SimulationResult summarise_simulation(const SimulatedKv& kv, std::span<const SimRequest> requests,
                                      const Goals& goals, SimOutcome outcome);

// Simulates `requests` at other rates, which all gaps between them are scaled to, for the highest,
// within 1 %, at which `share` of them reach `goals`. Returns what came of that one. Where not
// even requests that come alone do, that is what came of these, with a `rate` of 0; where all at
// once do, it is `unbounded`. A rate is that of these requests: more of them may reach less, as
// queues go on growing. progress: as of simulate(), of each try.
Result<SimulationResult> find_rate(const ClusterSetting& cluster, const SimulatedKv& kv,
                                   std::span<const SimRequest> requests, const Goals& goals,
                                   double share, const std::function<void(std::size_t)>& progress);

struct SimulationSetting {
  std::string model;      // its name
  bool windowed = false;  // it has a sliding window, which is not simulated
  ClusterSetting cluster;
  std::string workload;
  SimulatedWorkload requests;
  Goals goals;
  bool find_rate = false;  // results are each at a rate of its own
  std::string command;
};

// Tables for a person, and one JSON object.
std::string simulation_text(const SimulationSetting& setting,
                            std::span<const SimulationResult> results);
std::string simulation_json(const SimulationSetting& setting,
                            std::span<const SimulationResult> results);

}  // namespace kvlane
