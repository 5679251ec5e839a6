// The load generator: sends a workload to a server at its times and writes down what came when.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/serve_answer.h"
#include "bench/serve_request.h"
#include "bench/serve_workload.h"
#include "kvlane/status.h"
#include "server/http.h"

namespace kvlane {

// How one request went. Points in time are seconds after the start of the run.
struct RequestRecord {
  std::size_t conversation = 0;
  std::size_t turn = 0;
  // When it should have been sent, whatever held it up; all latencies count from here, so that a
  // slow server cannot make later requests look better by delaying them.
  double due = 0;
  double allowed = 0;  // `due`, or when the concurrency limit let it pass
  double sent = 0;     // when its connection was begun; after `allowed` it is the generator's delay
  double ended = 0;
  int planned_input_tokens = 0;
  Answer answer;
  Status status;            // why it failed
  std::string error;        // the kind of failure ("http_429", "timeout"), empty when it did not
  bool unfinished = false;  // cut off by the end of the run: neither completed nor failed

  bool completed() const { return error.empty() && !unfinished; }
};

struct LoadProgress {
  double seconds = 0;
  std::size_t sent = 0;
  std::size_t running = 0;
  std::size_t completed = 0;
  std::size_t failed = 0;
  std::size_t planned = 0;
  std::size_t output_tokens = 0;  // events with tokens, as they come
  bool warming_up = false;
};

struct LoadOptions {
  Url server;
  std::string api_key;
  RequestSettings request;
  int vocabulary = 0;           // token ids of prompts are below it; at least 1
  bool open_loop = true;        // conversations begin when they are due; else when there is a place
  std::size_t concurrency = 0;  // conversations at a time; 0 (open loop only): no limit
  std::optional<double> duration;  // seconds after which nothing new is sent
  std::size_t warmup = 0;          // requests sent before the clock starts, not recorded
  Seconds timeout{600};            // of a whole request
  bool keep_text = false;
  int stop_descriptor = -1;  // the run ends when it becomes readable; -1: never
  std::function<void(const LoadProgress&)> progress;  // twice a second, from another thread
};

struct LoadOutcome {
  std::vector<RequestRecord> records;  // in the order in which they were sent
  TimePoint start;
  double duration = 0;    // seconds from the start to the end of the last request
  double client_cpu = 0;  // seconds of the generator's one thread
  bool interrupted = false;
};

// Returns when every request has ended. Errors of requests are in their records; kInvalidArgument
// when the options make no sense. The calling thread waits; one other does all the work.
Result<LoadOutcome> run_load(const Workload& workload, const LoadOptions& options);

}  // namespace kvlane
