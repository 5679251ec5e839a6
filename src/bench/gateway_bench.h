// `kvlane bench gateway`: what a gateway adds to latencies, measured against workers that cost
// nothing themselves.
//
// The same streams run straight to a mock worker and through the gateway in front of it, in turns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "bench/paced_engine.h"
#include "bench/serve_load.h"
#include "server/service.h"

namespace kvlane {

// One prefill and one decode worker over paced engines, in this process, on free ports of the
// loopback address.
class MockWorkers {
 public:
  static Result<std::unique_ptr<MockWorkers>> start(Pace pace);

  Url prefill() const { return {prefill_->address(), ""}; }
  Url decode() const { return {decode_->address(), ""}; }  // answers plain requests alone

 private:
  MockWorkers() = default;
  PacedWire wire_;
  PacedPrompter prompter_;
  std::unique_ptr<Service> prefill_;
  std::unique_ptr<Service> decode_;
};

struct GatewayBenchOptions {
  Url direct;                 // a mock worker
  Url gateway;                // in front of it
  Pace pace;                  // of the workers
  std::size_t streams = 200;  // at a time
  int prompt_tokens = 64;
  int tokens = 40;  // of an answer
  int repeats = 5;
  std::function<double()> gateway_cpu;  // seconds of processor time it has used; may be empty
  std::function<void(std::string_view)> progress;
  int stop_descriptor = -1;
};

// kUnavailable when a request failed, kAborted when the run was ended early.
Result<Report> bench_gateway(const GatewayBenchOptions& options);

// Latencies of one run in milliseconds, without the requests that began or ended it: those do not
// have the other streams beside them.
struct StreamLatencies {
  std::vector<double> first_token;  // from when a request was due
  std::vector<double> token;        // from the worker's engine to the client, first tokens excluded
};

// `edge` requests at either end are left out. kCorrupt when an answer is not a paced one.
Result<StreamLatencies> stream_latencies(const LoadOutcome& outcome, std::size_t edge);

}  // namespace kvlane
