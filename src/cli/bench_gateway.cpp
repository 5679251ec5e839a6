// `kvlane bench gateway`: a real gateway in front of mock workers, and what it adds.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>

#include "bench/gateway_bench.h"
#include "cli/bench.h"
#include "cli/child_process.h"
#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/signals.h"

namespace kvlane {

namespace {

constexpr Seconds kGatewayStartPatience{30};
// Longer ones are no stream any more.
constexpr double kMillisecondsMax = 60'000;

struct BenchGatewayFlags {
  GatewayBenchOptions options;
  double prefill_ms = 20;
  double interval_ms = 40;
  bool json = false;
  std::string command;
};

std::chrono::microseconds from_milliseconds(double value) {
  return std::chrono::microseconds(static_cast<std::int64_t>(1000 * value));
}

// A process of its own, as in an installation, so that its processor time is its own too.
Result<ChildProcess> start_gateway(const MockWorkers& workers) {
  std::vector<std::string> arguments = {"gateway",
                                        "--prefill",
                                        to_string(workers.prefill()),
                                        "--decode",
                                        to_string(workers.decode()),
                                        "--port",
                                        "0",
                                        "--json",
                                        "--parent",
                                        std::to_string(::getpid())};
  // The mock workers ask for no key, whatever the environment says.
  return ChildProcess::start("gateway process", std::move(arguments), {"KVLANE_API_KEY="});
}

Status run_bench_gateway(const BenchGatewayFlags& flags) {
  KVLANE_ASSIGN(const EndingSignals signals, EndingSignals::install());
  GatewayBenchOptions options = flags.options;
  options.pace = {from_milliseconds(flags.prefill_ms), from_milliseconds(flags.interval_ms)};
  KVLANE_ASSIGN(const std::unique_ptr<MockWorkers> workers, MockWorkers::start(options.pace));
  KVLANE_ASSIGN(ChildProcess gateway, start_gateway(*workers));
  KVLANE_ASSIGN(const std::string url,
                gateway.read_url(signals.descriptor(), kGatewayStartPatience));
  KVLANE_ASSIGN(options.gateway, parse_url(url));
  options.direct = workers->decode();
  options.gateway_cpu = [&gateway] { return gateway.cpu_seconds(); };
  options.stop_descriptor = signals.descriptor();
  KVLANE_ASSIGN(Report report, measure_with_progress("bench gateway", options, bench_gateway));
  gateway.ask_to_stop();
  gateway.wait(kServiceStopPatience);
  print_report(std::move(report), flags.command, flags.json);
  return {};
}

}  // namespace

void add_bench_gateway(Command& bench) {
  Command command = bench.add_subcommand(
      "gateway", "What a gateway adds to latencies, measured against mock workers");
  command.footer("Example: kvlane bench gateway --streams 200 --repeats 5");
  const auto flags = std::make_shared<BenchGatewayFlags>();
  GatewayBenchOptions& options = flags->options;
  command.add_option("--streams", options.streams, "streams at a time")
      .check(range(std::size_t{1}, std::size_t{2000}))
      .capture_default_str();
  command.add_option("--tokens", options.tokens, "of an answer")
      .check(range(2, 100'000))
      .capture_default_str();
  command.add_option("--prompt-tokens", options.prompt_tokens, "of a prompt")
      .check(range(1, 1'000'000))
      .capture_default_str();
  command.add_option("--repeats", options.repeats, "medians are over so many pairs of runs")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_option("--prefill-ms", flags->prefill_ms, "milliseconds that the mock prefill takes")
      .check(number_between(0, kMillisecondsMax))
      .capture_default_str();
  command.add_option("--interval-ms", flags->interval_ms, "milliseconds between two tokens")
      .check(number_between(0.1, kMillisecondsMax))
      .capture_default_str();
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags, command] {
    flags->command = "kvlane bench gateway " + command.typed_options();
    return run_bench_gateway(*flags);
  });
}

}  // namespace kvlane
