// Even streams, directly and through the gateway, and the differences.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gateway_bench.h"

#include <algorithm>
#include <limits>

#include "bench/arrivals.h"
#include "bench/serve_result.h"
#include "bench/statistics.h"

namespace kvlane {

namespace {

// One run issues this many times as many requests as streams; the first and the last of them are
// the edges.
constexpr std::size_t kGenerations = 5;

// What one pair of runs found, in milliseconds.
struct Difference {
  Summary direct_first, first, direct_token, token;
  double cpu_per_token = 0;         // seconds, of the gateway
  double client_cpu_per_token = 0;  // of the client, through the gateway
};

Result<std::unique_ptr<Service>> start_mock(Role role, Pace pace, PacedWire& wire,
                                            const Prompter& prompter) {
  WorkerServiceOptions options;
  options.service.bind = {"127.0.0.1", 0};
  options.role = role;
  options.model_name = "mock";
  options.data_plane = Address{"127.0.0.1", 1};  // told to peers; nothing connects to it
  return Service::start_worker(make_paced_engine(pace, &wire), prompter, std::move(options));
}

class GatewayBench {
 public:
  explicit GatewayBench(const GatewayBenchOptions& options) : options_(options) {}

  Result<Report> run() {
    if (options_.streams < 1 || options_.tokens < 2 || options_.repeats < 1) {
      return invalid_argument("streams and repeats must be at least 1, tokens at least 2");
    }
    std::vector<Difference> differences;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      const std::string count =
          std::to_string(repeat + 1) + " of " + std::to_string(options_.repeats);
      Difference difference;
      KVLANE_TRY(measure(options_.direct, "directly, " + count, difference.direct_first,
                         difference.direct_token, difference));
      KVLANE_TRY(measure(options_.gateway, "through the gateway, " + count, difference.first,
                         difference.token, difference));
      differences.push_back(std::move(difference));
    }
    return Report{describe_machine(1), build_commit(), "", figures(differences)};
  }

 private:
  // The processor time of the last measurement stays in `difference`.
  Status measure(const Url& server, const std::string& what, Summary& first, Summary& token,
                 Difference& difference) {
    if (options_.progress) options_.progress(what);
    KVLANE_ASSIGN(const Workload workload, plan());
    LoadOptions load;
    load.server = server;
    load.vocabulary = 1 << 15;
    load.keep_text = true;
    load.warmup = options_.streams / 4 + 1;
    load.stop_descriptor = options_.stop_descriptor;
    const double cpu_before = options_.gateway_cpu ? options_.gateway_cpu() : 0;
    KVLANE_ASSIGN(const LoadOutcome outcome, run_load(workload, load));
    if (outcome.interrupted) return aborted("the run was ended");
    for (const RequestRecord& record : outcome.records) {
      if (!record.completed()) return record.status.with_context(what);
    }
    const double tokens = static_cast<double>(workload.requests) * options_.tokens;
    const double warm_tokens = static_cast<double>(load.warmup) * options_.tokens;
    difference.client_cpu_per_token = outcome.client_cpu / tokens;
    if (options_.gateway_cpu) {
      difference.cpu_per_token = (options_.gateway_cpu() - cpu_before) / (tokens + warm_tokens);
    }
    KVLANE_ASSIGN(const StreamLatencies latencies, stream_latencies(outcome, options_.streams));
    const std::vector<double> percents = {99};
    first = summarise(latencies.first_token, percents);
    token = summarise(latencies.token, percents);
    return {};
  }

  // Requests that begin evenly, so that from the first one's end on `streams` of them run.
  Result<Workload> plan() const {
    DrawnWorkload drawn;
    drawn.input = around(options_.prompt_tokens, 0);
    drawn.output = around(options_.tokens, 0);
    WorkloadLimits limits;
    limits.requests = options_.streams * kGenerations;
    KVLANE_ASSIGN(Workload workload, draw_workload(drawn, limits, 0));
    const Seconds request =
        options_.pace.prefill + options_.pace.token_interval * (options_.tokens - 1);
    const double rate = static_cast<double>(options_.streams) / request.count();
    const double even = std::numeric_limits<double>::infinity();
    const std::vector<double> due = open_loop_arrivals(limits.requests, rate, even, 0);
    for (std::size_t i = 0; i < due.size(); ++i) workload.conversations[i].due = due[i];
    return workload;
  }

  template <class Value>
  static double median_of(const std::vector<Difference>& differences, Value value) {
    std::vector<double> values;
    for (const Difference& difference : differences) values.push_back(value(difference));
    return median(std::move(values));
  }

  std::vector<Figure> figures(const std::vector<Difference>& differences) const {
    constexpr double kMedianGoal = 1;
    constexpr double kP99Goal = 5;
    using Member = Summary Difference::*;
    const auto middle = [](const Summary& summary) { return summary.median; };
    const auto tail = [](const Summary& summary) { return summary.percentiles[0].second; };
    std::vector<Figure> found;
    const auto add = [&](const std::string& name, Member through, Member direct, auto of,
                         double goal) {
      const double value = median_of(differences, [&](const auto& d) { return of(d.*through); });
      const double base = median_of(differences, [&](const auto& d) { return of(d.*direct); });
      const double added =
          median_of(differences, [&](const auto& d) { return of(d.*through) - of(d.*direct); });
      found.push_back({name + "_ms", value, "ms", base});
      found.push_back({.name = name + "_added_ms",
                       .value = added,
                       .unit = "ms",
                       .goal = goal,
                       .better = Figure::Better::kLower});
    };
    add("gateway_ttft_median", &Difference::first, &Difference::direct_first, middle, kMedianGoal);
    add("gateway_ttft_p99", &Difference::first, &Difference::direct_first, tail, kP99Goal);
    add("gateway_token_median", &Difference::token, &Difference::direct_token, middle, kMedianGoal);
    add("gateway_token_p99", &Difference::token, &Difference::direct_token, tail, kP99Goal);
    found.push_back({"gateway_streams", static_cast<double>(options_.streams), "requests"});
    if (options_.gateway_cpu) {
      const double cpu = median_of(differences, [](const auto& d) { return d.cpu_per_token; });
      found.push_back({"gateway_cpu_per_token", cpu, "s"});
    }
    const double cpu = median_of(differences, [](const auto& d) { return d.client_cpu_per_token; });
    found.push_back({"client_cpu_per_token", cpu, "s"});
    return found;
  }

  const GatewayBenchOptions& options_;
};

}  // namespace

Result<std::unique_ptr<MockWorkers>> MockWorkers::start(Pace pace) {
  std::unique_ptr<MockWorkers> workers(new MockWorkers());
  KVLANE_ASSIGN(workers->prefill_,
                start_mock(Role::kPrefill, pace, workers->wire_, workers->prompter_));
  KVLANE_ASSIGN(workers->decode_,
                start_mock(Role::kDecode, pace, workers->wire_, workers->prompter_));
  return workers;
}

Result<StreamLatencies> stream_latencies(const LoadOutcome& outcome, std::size_t edge) {
  constexpr double kMillisecond = 1e-3;
  StreamLatencies latencies;
  const std::size_t count = outcome.records.size();
  for (std::size_t i = edge; i + edge < count; ++i) {
    const RequestRecord& record = outcome.records[i];
    const Answer& answer = record.answer;
    const std::optional<std::vector<TimePoint>> told = token_times_of(answer.text);
    std::size_t tokens = 0;
    for (const int event : answer.counts) tokens += static_cast<std::size_t>(event);
    if (!told || told->size() != tokens) return corrupt("the server is no mock worker");
    latencies.first_token.push_back(ttft_of(record) / kMillisecond);
    std::size_t token = 0;
    for (std::size_t event = 0; event < answer.times.size(); ++event) {
      for (int part = 0; part < answer.counts[event]; ++part, ++token) {
        if (token == 0) continue;
        const double sent = seconds_between(outcome.start, (*told)[token]);
        latencies.token.push_back((answer.times[event] - sent) / kMillisecond);
      }
    }
  }
  return latencies;
}

Result<Report> bench_gateway(const GatewayBenchOptions& options) {
  return GatewayBench(options).run();
}

}  // namespace kvlane
