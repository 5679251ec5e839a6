// What the records of a run add up to. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/serve_load.h"
#include "bench/statistics.h"

namespace kvlane {

// What a request may take at most, in seconds, to count as good.
struct Goals {
  std::optional<double> ttft;
  std::optional<double> tpot;
  std::optional<double> e2el;

  bool any() const { return ttft || tpot || e2el; }
};

// "ttft:200", "tpot:50", "e2el:1000", in milliseconds. kInvalidArgument names the one that is
// wrong.
Result<Goals> parse_goals(const std::vector<std::string>& texts);

// Latencies of a completed request, in seconds, all counted from when it was due.
double ttft_of(const RequestRecord& record);  // to its first token
double e2el_of(const RequestRecord& record);  // to its last one
// Time per output token behind the first; nothing for answers of one token.
std::optional<double> tpot_of(const RequestRecord& record);
// Times between events that carried tokens.
std::vector<double> itls_of(const RequestRecord& record);

// Counts and latencies are those of completed requests; latencies in milliseconds.
struct ServeResult {
  std::size_t completed = 0;
  std::size_t failed = 0;
  std::size_t unfinished = 0;
  std::map<std::string, std::size_t> errors;  // failed requests by kind
  double duration = 0;                        // seconds
  std::size_t input_tokens = 0;
  std::size_t output_tokens = 0;
  std::size_t cached_tokens = 0;  // of the input: found in a prefix cache, where the server tells
  double request_throughput = 0;
  std::optional<double> request_goodput;  // requests within all goals, per second
  double output_throughput = 0;
  double total_token_throughput = 0;
  double max_output_tokens_per_s = 0;  // in the best whole second
  std::size_t max_concurrent_requests = 0;
  Summary ttft, tpot, itl, e2el;
  Summary client_queue;     // from when a request was due until the concurrency limit let it pass
  double max_lateness = 0;  // from then until it was sent: above a few ms the client is too slow
  double client_cpu = 0;    // seconds
  // Mean over requests of each interval's share of the request's completion time, in the order of
  // kAccountFields; empty when no answer carried an account.
  std::vector<std::pair<std::string, double>> account_shares;
  bool interrupted = false;
};

ServeResult summarise_load(const LoadOutcome& outcome, const Goals& goals,
                           const std::vector<double>& percents);

}  // namespace kvlane
