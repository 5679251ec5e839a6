// `kvlane bench serve`: asks the server what it is, plans the workload, runs it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <string>

#include "bench/serve_load.h"
#include "bench/serve_output.h"

namespace kvlane {

// Which requests. What is absent is the data set's own, where it has it.
struct DatasetOptions {
  std::string name = "random";  // or "trace", or a workload of lengths.h
  std::filesystem::path path;   // of a trace
  int input_tokens = 1024;      // random
  int output_tokens = 128;      // random
  double range_ratio = 0;       // random
  int prefix_tokens = 0;        // of every drawn workload; added to a paper's own context
  int prefixes = 1;
  double prefix_zipf = 0;
  std::optional<int> rounds;
  std::optional<double> think_time;
  double length_scale = 1;  // traces
  double time_scale = 1;    // traces
};

// When requests are sent. With neither a rate nor a closed loop, a trace is replayed at its own
// times, and everything else is sent at once.
struct ArrivalOptions {
  std::optional<double> request_rate;  // per second; infinity: all at once
  double burstiness = 1;
  bool closed_loop = false;     // `concurrency` clients, each of which waits for its answer
  std::size_t concurrency = 0;  // of the closed loop, or the limit of the open one (0: none)
};

struct ServeBenchOptions {
  DatasetOptions dataset;
  ArrivalOptions arrival;
  std::optional<std::size_t> num_prompts;
  std::optional<int> vocabulary;  // absent: asked from the server
  std::optional<int> context;     // --max-model-len; absent: asked from the server
  std::uint64_t seed = 0;
  Goals goals;
  std::vector<double> percents = {99};
  LoadOptions load;  // open_loop, concurrency and vocabulary are set here
};

struct ServeBenchRun {
  ServeSetting setting;
  LoadOutcome outcome;
  ServeResult result;
};

// kUnavailable when the server does not answer, kInvalidArgument when the options make no sense.
// Failed requests are no error: they are in the result.
Result<ServeBenchRun> bench_serve(const ServeBenchOptions& options);

// The plan alone: what bench_serve would send. `context` as it is known by then.
Result<Workload> plan_workload(const ServeBenchOptions& options, std::optional<int> context);

}  // namespace kvlane
