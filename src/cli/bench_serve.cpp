// `kvlane bench serve`: load on any server that speaks OpenAI's API, and how it copes.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "bench/serve_bench.h"
#include "cli/bench.h"
#include "cli/dataset_flags.h"
#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/load_progress.h"
#include "cli/signals.h"

namespace kvlane {

namespace {

// Above it somebody slipped.
constexpr std::size_t kRequestsMax = 10'000'000;

struct BenchServeFlags {
  ServeBenchOptions options;
  std::string base_url = "http://127.0.0.1:8000";
  std::string endpoint = "completions";
  std::string prompts = "ids";
  std::string request_rate;
  std::size_t concurrency = 0;      // --concurrency: a closed loop
  std::size_t max_concurrency = 0;  // the limit of an open one
  bool obey_eos = false;
  bool no_token_ids = false;
  std::vector<std::string> goodput;
  double timeout = 600;
  std::string save_result;
  bool save_detailed = false;
  bool json = false;
  std::string command;  // as it was typed
};

Result<double> parse_rate(const std::string& text) {
  double rate = 0;
  if (!read_number(text, rate) || !(rate > 0)) {
    return invalid_argument("--request-rate must be a positive number or inf, not '" +
                            text.substr(0, 40) + "'");
  }
  return rate;
}

// Clients name servers with and without the path that all routes share.
Result<Url> parse_base_url(std::string text) {
  KVLANE_ASSIGN(Url url, parse_url(text));
  constexpr std::string_view kApiPath = "/v1";
  if (url.prefix.ends_with(kApiPath)) {
    url.prefix.resize(url.prefix.size() - kApiPath.size());
  }
  return url;
}

Result<ServeBenchOptions> options_from(const BenchServeFlags& flags) {
  ServeBenchOptions options = flags.options;
  settle_dataset(options.dataset);
  KVLANE_ASSIGN(options.load.server, parse_base_url(flags.base_url));
  RequestSettings& request = options.load.request;
  request.api = flags.endpoint == "chat" ? Api::kChat : Api::kCompletions;
  request.text = flags.prompts == "text";
  request.ignore_eos = !flags.obey_eos;
  request.return_token_ids = !flags.no_token_ids && !request.text && request.api != Api::kChat;
  if (!flags.request_rate.empty()) {
    KVLANE_ASSIGN(options.arrival.request_rate, parse_rate(flags.request_rate));
  }
  if (flags.concurrency > 0 && flags.max_concurrency > 0) {
    return invalid_argument(
        "--concurrency is a closed loop, --max-concurrency limits an open one: give one of them");
  }
  options.arrival.closed_loop = flags.concurrency > 0;
  options.arrival.concurrency = std::max(flags.concurrency, flags.max_concurrency);
  KVLANE_ASSIGN(options.goals, parse_goals(flags.goodput));
  options.load.timeout = Seconds(flags.timeout);
  options.load.keep_text = flags.save_detailed;
  return options;
}

Status all_failed(const ServeBenchRun& run) {
  for (const RequestRecord& record : run.outcome.records) {
    if (record.error.empty()) continue;
    return unavailable("no request was answered; the first failure: " + record.status.message());
  }
  return {};
}

Status run_bench_serve(const BenchServeFlags& flags) {
  KVLANE_ASSIGN(ServeBenchOptions options, options_from(flags));
  KVLANE_ASSIGN(const EndingSignals signals, EndingSignals::install());
  options.load.stop_descriptor = signals.descriptor();
  ServeBenchRun run;
  {
    LoadProgressPrinter printer;
    options.load.progress = [&printer](const LoadProgress& progress) { printer.show(progress); };
    KVLANE_ASSIGN(run, bench_serve(options));
  }
  if (!flags.save_result.empty()) {
    const std::string text =
        serve_result_json(run.setting, run.result, flags.save_detailed ? &run.outcome : nullptr) +
        "\n";
    KVLANE_TRY(write_file(flags.save_result, std::as_bytes(std::span(text))));
  }
  if (flags.json) {
    const Report report{describe_machine(1), build_commit(), flags.command,
                        serve_figures(run.result)};
    std::cout << report_json(report) << '\n';
  } else {
    std::cout << serve_text(run.setting, run.result);
  }
  return run.result.completed == 0 ? all_failed(run) : Status();
}

void add_server_options(Command& command, BenchServeFlags& flags) {
  LoadOptions& load = flags.options.load;
  command.add_option("--base-url", flags.base_url, "the server").capture_default_str();
  command.add_option("--model", load.request.model, "what it calls the model (default: its first)");
  command.add_option("--api-key", load.api_key, "sent as 'Authorization: Bearer KEY'")
      .envname("KVLANE_API_KEY");
  command.add_option("--endpoint", flags.endpoint, "completions or chat")
      .check(one_of({"completions", "chat"}))
      .capture_default_str();
  command
      .add_option("--prompts", flags.prompts,
                  "ids: token ids; text: words, about a token each, for servers that refuse ids")
      .check(one_of({"ids", "text"}))
      .capture_default_str();
  command
      .add_option("--vocab-size", flags.options.vocabulary,
                  "token ids are below it (default: what the server says)")
      .check(range(1, kFlagTokensMax));
  command
      .add_option("--max-model-len", flags.options.context,
                  "requests are cut to it, prompt and answer together (default: what the server "
                  "says)")
      .check(range(2, kFlagTokensMax));
  command.add_option("--timeout", flags.timeout, "seconds that a whole request may take")
      .check(number_between(0.001, kFlagSecondsMax))
      .capture_default_str();
}

void add_arrival_options(Command& command, BenchServeFlags& flags) {
  command.add_option("--request-rate", flags.request_rate,
                     "requests per second, whatever the server does; inf: all at once (the "
                     "default; a trace has its own times)");
  command
      .add_option("--burstiness", flags.options.arrival.burstiness,
                  "shape of the gamma-distributed gaps: 1 is Poisson, less is burstier, inf is "
                  "even")
      .check(number_between(0.01, std::numeric_limits<double>::infinity()))
      .capture_default_str();
  command
      .add_option("--concurrency", flags.concurrency,
                  "a closed loop: so many clients, each of which waits for its answer")
      .check(range(std::size_t{1}, kRequestsMax));
  command
      .add_option("--max-concurrency", flags.max_concurrency,
                  "the most requests at a time when they come at a rate or at a trace's times")
      .check(range(std::size_t{1}, kRequestsMax));
  command
      .add_option("--num-prompts", flags.options.num_prompts,
                  "requests (default: 1000; a whole trace; or what the rate makes of --duration)")
      .check(range(std::size_t{1}, kRequestsMax));
  command
      .add_option("--duration", flags.options.load.duration,
                  "seconds after which nothing new is sent")
      .check(number_between(0.001, kFlagSecondsMax));
  command
      .add_option("--warmup,--num-warmups", flags.options.load.warmup,
                  "requests that are sent before and not counted")
      .check(range(std::size_t{0}, kRequestsMax))
      .capture_default_str();
  command
      .add_option("--seed", flags.options.seed,
                  "of all random choices; with the same seed a server's prefix cache may know the "
                  "prompts of an earlier run")
      .capture_default_str();
}

void add_sampling_options(Command& command, BenchServeFlags& flags) {
  RequestSettings& request = flags.options.load.request;
  command.add_option("--temperature", request.temperature, "0: greedy")
      .check(number_between(0, 2.0))
      .capture_default_str();
  command.add_option("--top-p", request.top_p).check(number_between(0, 1.0));
  command.add_option("--top-k", request.top_k).check(range(-1, kFlagTokensMax));
  command.add_flag("--obey-eos", flags.obey_eos,
                   "answers may end before their length ('ignore_eos' is not sent)");
  command.add_flag("--no-token-ids", flags.no_token_ids,
                   "'return_token_ids' is not sent; events then count as one token each");
  command.add_option("--extra-body", request.extra_body,
                     "a JSON object of further fields of every request");
}

void add_result_options(Command& command, BenchServeFlags& flags) {
  command.add_option("--goodput", flags.goodput,
                     "milliseconds within which a request is good: ttft:200 tpot:50 e2el:1000");
  command
      .add_option("--percentiles,--metric-percentiles", flags.options.percents,
                  "of every latency, separated by commas")
      .delimiter(',')
      .check(number_between(0, 100.0))
      .default_str("99");
  command.add_option("--save-result", flags.save_result,
                     "a JSON file with the names of 'vllm bench serve --save-result'");
  command.add_flag("--save-detailed", flags.save_detailed,
                   "with every request's latencies and text");
  command.add_flag("--json", flags.json, "figures as one JSON object instead of text");
}

}  // namespace

void add_bench_serve(Command& bench) {
  Command command = bench.add_subcommand("serve", "Load on any server that speaks OpenAI's API");
  command.footer(
      "Examples:\n"
      "  kvlane bench serve --input-len 512 --output-len 64 --request-rate 4 --num-prompts 200\n"
      "  kvlane bench serve --dataset arxiv --concurrency 16 --duration 60 --goodput ttft:500\n"
      "  kvlane bench serve --dataset mooncake --dataset-path trace.jsonl --scale-lengths 0.02\n"
      "  kvlane bench serve --dataset sharegpt4 --rounds 4 --think-time 1 --request-rate 2");
  const auto flags = std::make_shared<BenchServeFlags>();
  add_server_options(command, *flags);
  add_dataset_flags(command, flags->options.dataset);
  add_arrival_options(command, *flags);
  add_sampling_options(command, *flags);
  add_result_options(command, *flags);
  command.action([flags, command] {
    flags->command = "kvlane bench serve " + command.typed_options();
    return run_bench_serve(*flags);
  });
}

}  // namespace kvlane
