// `kvlane bench engine`: what the scheduler costs and is worth.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>

#include "bench/engine_bench.h"
#include "cli/bench.h"

namespace kvlane {
namespace {

struct BenchEngineFlags {
  EngineBenchOptions options;
  std::string directory;
  std::string cpu = "auto";
  bool json = false;

  std::string command() const {
    return "kvlane bench engine " + directory + " --batch " + std::to_string(options.batch) +
           " --prompt " + std::to_string(options.prompt_tokens) + " --answer " +
           std::to_string(options.answer_tokens) + " --prefix " +
           std::to_string(options.prefix_tokens) + " --repeats " + std::to_string(options.repeats) +
           " --cpu " + cpu +
           (options.threads > 0 ? " --threads " + std::to_string(options.threads) : "");
  }
};

Status run_bench_engine(const BenchEngineFlags& flags) {
  EngineBenchOptions options = flags.options;
  options.directory = flags.directory;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  KVLANE_ASSIGN(Report report, measure_with_progress("bench engine", options, bench_engine));
  print_report(std::move(report), flags.command(), flags.json);
  return {};
}

}  // namespace

void add_bench_engine(Command& bench) {
  Command engine = bench.add_subcommand(
      "engine", "The scheduler: its share of a step, the pace it keeps, prefixes it finds again");
  engine.footer("Example: kvlane bench engine models/kvlane-tiny-gqa --batch 8 --json");
  const auto flags = std::make_shared<BenchEngineFlags>();
  EngineBenchOptions& options = flags->options;
  engine.add_option("DIR,--model", flags->directory, "Hugging Face model directory").required();
  engine.add_option("--batch", options.batch, "answers at once")
      .check(range(1, 1024))
      .capture_default_str();
  engine.add_option("--prompt", options.prompt_tokens, "tokens of each of their prompts")
      .check(range(1, INT32_MAX))
      .capture_default_str();
  engine
      .add_option("--answer", options.answer_tokens,
                  "tokens of each answer before the long prompt arrives, and again after")
      .check(range(4, INT32_MAX / 2))
      .capture_default_str();
  engine.add_option("--prefix", options.prefix_tokens, "tokens of the long prompt")
      .check(range(64, INT32_MAX))
      .capture_default_str();
  engine.add_option("--repeats", options.repeats, "medians are over so many runs")
      .check(range(1, 1000))
      .capture_default_str();
  engine.add_option("--threads", options.threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  engine.add_option("--cpu", flags->cpu, "kernels: auto, scalar, avx2, avx512, avx512_bf16")
      .capture_default_str();
  engine.add_flag("--json", flags->json, "one JSON object instead of a table");
  engine.action([flags] { return run_bench_engine(*flags); });
}

}  // namespace kvlane
