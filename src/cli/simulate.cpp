// `kvlane simulate`: what a cluster would do with a workload, in several KV formats.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "bench/gpu_file.h"
#include "bench/simulated_replicas.h"
#include "bench/simulation.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/dataset_flags.h"
#include "cli/flags.h"
#include "cli/progress.h"

namespace kvlane {
namespace {

constexpr double kBytesInGbit = 1e9 / 8;

struct SimulateFlags {
  std::string model;
  std::string prefill;
  std::string decode;
  std::string gpus;       // file; empty: none
  double flow_limit = 0;  // Gbit/s; 0: none
  std::vector<std::string> formats = {"bf16", "hack"};
  std::vector<std::string> codecs = {"none"};
  bool unfused = false;
  std::string push = "layer";
  double memory_share = 0.9;
  ReplicaLimits limits;
  double step_overhead = 0.3;  // milliseconds
  double layer_overhead = 10;  // microseconds
  bool prefix_caching = true;
  double request_rate = 0;  // 0: the trace's own times
  ServeBenchOptions workload;
  std::vector<std::string> goodput;
  bool find_rate = false;
  double attainment = 0.9;
  bool json = false;
  std::string command;  // as it was typed
};

Result<ModelConfig> read_config(const std::string& model) {
  constexpr std::size_t kConfigBytesMax = 1 << 20;
  std::filesystem::path path = model;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  KVLANE_ASSIGN(const std::string text, read_text_file(path, kConfigBytesMax));
  const Result<ModelConfig> config = parse_model_config(text);
  return config.ok() ? config : config.status().with_context(path.string());
}

Result<ClusterSetting> cluster_from(const SimulateFlags& flags, const ModelConfig& config) {
  ClusterSetting cluster;
  cluster.model = simulated_model(config);
  std::vector<Gpu> gpus;
  if (!flags.gpus.empty()) {
    KVLANE_ASSIGN(gpus, read_gpus(flags.gpus));
  }
  if (!flags.prefill.empty()) {
    KVLANE_ASSIGN(cluster.prefill, parse_replicas(flags.prefill, gpus));
  }
  KVLANE_ASSIGN(cluster.decode, parse_replicas(flags.decode, gpus));
  cluster.prefill.limits = cluster.decode.limits = flags.limits;
  if (flags.flow_limit > 0) cluster.flow_rate_max = kBytesInGbit * flags.flow_limit;
  cluster.push_whole = flags.push == "whole";
  cluster.memory_share = flags.memory_share;
  cluster.overheads = {.step = 1e-3 * flags.step_overhead, .layer = 1e-6 * flags.layer_overhead};
  return cluster;
}

// Every format with every codec that makes a difference.
Result<std::vector<SimulatedKv>> kv_from(const SimulateFlags& flags, const ModelConfig& config) {
  std::vector<SimulatedKv> all;
  for (const std::string& format : flags.formats) {
    for (const std::string& codec : flags.codecs) {
      KVLANE_ASSIGN(SimulatedKv kv, simulated_kv(format, codec, config, flags.unfused));
      const bool known = std::any_of(all.begin(), all.end(), [&](const SimulatedKv& each) {
        return each.costs.name == kv.costs.name;
      });
      if (!known) all.push_back(std::move(kv));
    }
  }
  return all;
}

Result<SimulationResult> simulate_one(const SimulateFlags& flags, SimulationSetting& setting,
                                      const SimulatedKv& kv) {
  Progress progress("simulating " + kv.costs.name);
  const auto show = [&, counter = progress.counter()](std::size_t ended) {
    counter(ended, setting.requests.requests.size());
  };
  if (flags.find_rate) {
    return find_rate(setting.cluster, kv, setting.requests.requests, setting.goals,
                     flags.attainment, show);
  }
  setting.cluster.kv = kv.costs;
  KVLANE_ASSIGN(SimOutcome outcome, simulate(setting.cluster, setting.requests.requests, show));
  return summarise_simulation(kv, setting.requests.requests, setting.goals, std::move(outcome));
}

Status run_simulate(SimulateFlags& flags) {
  KVLANE_ASSIGN(const ModelConfig config, read_config(flags.model));
  SimulationSetting setting;
  setting.model = model_name({.directory = flags.model}, {});
  setting.windowed = config.window > 0;
  setting.command = flags.command;
  KVLANE_ASSIGN(setting.cluster, cluster_from(flags, config));
  KVLANE_ASSIGN(const std::vector<SimulatedKv> formats, kv_from(flags, config));
  settle_dataset(flags.workload.dataset);
  if (flags.request_rate > 0) flags.workload.arrival.request_rate = flags.request_rate;
  KVLANE_ASSIGN(const Workload workload, plan_workload(flags.workload, config.context));
  KVLANE_ASSIGN(setting.requests, simulated_workload(workload));
  if (!flags.prefix_caching) {
    for (SimRequest& each : setting.requests.requests) each.names.reset();
  }
  KVLANE_ASSIGN(setting.goals, parse_goals(flags.goodput));
  setting.find_rate = flags.find_rate;
  if (flags.find_rate && !setting.goals.any()) {
    return invalid_argument("--find-rate needs --goodput: goals that requests are to reach");
  }
  setting.workload = flags.workload.dataset.name == "trace"
                         ? flags.workload.dataset.path.filename().string()
                         : flags.workload.dataset.name;
  std::vector<SimulationResult> results;
  for (const SimulatedKv& kv : formats) {
    KVLANE_ASSIGN(SimulationResult result, simulate_one(flags, setting, kv));
    results.push_back(std::move(result));
  }
  std::cout << (flags.json ? simulation_json(setting, results) + "\n"
                           : simulation_text(setting, results));
  return {};
}

void add_cluster_flags(Command& command, SimulateFlags& flags) {
  command.add_option("model", flags.model, "directory of a checkpoint, or a config.json")
      .required();
  command.add_option("--prefill", flags.prefill,
                     "replicas that compute prompts, as 5xA10G:tp=4,pp=2,net=40 (Gbit/s of each, "
                     "100 unless told); "
                     "without any, those of --decode do");
  command.add_option("--decode", flags.decode, "replicas that answer").required();
  command.add_option("--gpus", flags.gpus,
                     "JSON file of further GPUs, or of other figures for known ones; "
                     "docs/simulate.md");
  command
      .add_option("--flow-limit", flags.flow_limit,
                  "Gbit/s that one transfer gets at most, as one TCP connection does in clouds")
      .check(number_between(1e-3, 1e5));
  command
      .add_option("--kv-push", flags.push,
                  "layer: KV leaves while later layers are computed; whole: behind the prompt")
      .check(one_of({"layer", "whole"}))
      .capture_default_str();
  command
      .add_option("--gpu-memory-utilization", flags.memory_share,
                  "of GPUs' memory, for weights and KV")
      .check(number_between(0.01, 1))
      .capture_default_str();
  command
      .add_option("--max-num-batched-tokens", flags.limits.batch_tokens_max,
                  "prompt tokens of a step")
      .check(range(1, 1 << 20))
      .capture_default_str();
  command.add_option("--max-num-seqs", flags.limits.sequences_max, "sequences of a step")
      .check(range(1, 1 << 16))
      .capture_default_str();
  command
      .add_option("--decode-slowdown", flags.limits.slowdown_max,
                  "a step takes at most so many times longer for prompts beside answers")
      .check(number_between(1, 1e3))
      .capture_default_str();
  command
      .add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.prefix_caching,
                "replicas keep blocks for prompts that begin alike (on by default)")
      .default_str("");
  command
      .add_option("--step-overhead", flags.step_overhead, "milliseconds of a step beside computing")
      .check(number_between(0, 1e4))
      .capture_default_str();
  command
      .add_option("--layer-overhead", flags.layer_overhead,
                  "microseconds of a layer beside computing; 300 to 450 without graphs")
      .check(number_between(0, 1e6))
      .capture_default_str();
}

void add_format_flags(Command& command, SimulateFlags& flags) {
  command.add_option("--kv-format", flags.formats, "formats to compare, the first with the others")
      .capture_default_str();
  command
      .add_option("--kv-codec", flags.codecs,
                  "codecs of 16-bit KV to compare: none, splitzip, splitzip:channel")
      .capture_default_str();
  command.add_flag("--unfused", flags.unfused,
                   "formats that attention cannot read are opened in memory at every step, as in "
                   "HACK's comparison, not inside attention");
}

void add_arrival_flags(Command& command, SimulateFlags& flags) {
  command
      .add_option("--request-rate", flags.request_rate,
                  "requests a second, Poisson (default: a trace's own times; else all at once)")
      .check(number_between(1e-6, 1e6));
  command
      .add_option("--burstiness", flags.workload.arrival.burstiness,
                  "shape of the gamma-distributed gaps: 1 is Poisson, less is burstier")
      .check(number_between(0.01, std::numeric_limits<double>::infinity()))
      .capture_default_str();
  command
      .add_option("--num-prompts", flags.workload.num_prompts,
                  "requests (default: 1000, or a whole trace)")
      .check(range(std::size_t{1}, kTraceRequestsMax));
  command.add_option("--goodput", flags.goodput,
                     "milliseconds within which a request is good: ttft:2000 tpot:100 e2el:60000");
  command.add_flag("--find-rate", flags.find_rate,
                   "for each format the highest rate at which enough requests are good");
  command.add_option("--attainment", flags.attainment, "which share is enough")
      .check(number_between(0.01, 1))
      .capture_default_str();
  command.add_option("--seed", flags.workload.seed, "of lengths and arrivals")
      .capture_default_str();
}

}  // namespace

void add_simulate(Command& app) {
  Command command = app.add_subcommand(
      "simulate",
      "What a cluster of GPUs would do with a workload, by KV format; docs/simulate.md");
  command.footer(
      "Examples:\n"
      "  kvlane simulate config.json --prefill 5xA10G:tp=4,pp=2,net=40 \\\n"
      "    --decode 4xA100-80GB-SXM:tp=4,net=200 --dataset cocktail --request-rate 0.3 \\\n"
      "    --kv-format bf16 cachegen kvquant hack --kv-codec none splitzip\n"
      "  kvlane simulate models/kvlane-small --decode 2xL4 --dataset azure --dataset-path "
      "trace.csv");
  const auto flags = std::make_shared<SimulateFlags>();
  add_cluster_flags(command, *flags);
  add_format_flags(command, *flags);
  add_dataset_flags(command, flags->workload.dataset);
  add_arrival_flags(command, *flags);
  command.add_flag("--json", flags->json, "one JSON object instead of tables");
  command.action([flags, command] {
    flags->command = "kvlane simulate " + command.typed_options();
    return run_simulate(*flags);
  });
}

}  // namespace kvlane
