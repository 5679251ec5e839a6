// `kvlane bench engine`: what the scheduler costs and is worth.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>

#include "bench/engine_bench.h"
#include "cli/bench.h"
#include "cli/progress.h"

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
  Report report;
  {
    Progress progress("bench engine");
    options.progress = [&progress](std::string_view what) { progress.show(what); };
    KVLANE_ASSIGN(report, bench_engine(options));
  }
  report.command = flags.command();
  std::cout << (flags.json ? report_json(report) + "\n" : report_table(report));
  return {};
}

}  // namespace

void add_bench_engine(CLI::App& bench, Run& run) {
  CLI::App* const engine = bench.add_subcommand(
      "engine", "The scheduler: its share of a step, the pace it keeps, prefixes it finds again");
  engine->footer("Example: kvlane bench engine models/kvlane-tiny-gqa --batch 8 --json");
  const auto flags = std::make_shared<BenchEngineFlags>();
  EngineBenchOptions& options = flags->options;
  engine->add_option("DIR,--model", flags->directory, "Hugging Face model directory")->required();
  engine->add_option("--batch", options.batch, "answers at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  engine->add_option("--prompt", options.prompt_tokens, "tokens of each of their prompts")
      ->check(CLI::Range(1, INT32_MAX))
      ->capture_default_str();
  engine
      ->add_option("--answer", options.answer_tokens,
                   "tokens of each answer before the long prompt arrives, and again after")
      ->check(CLI::Range(4, INT32_MAX / 2))
      ->capture_default_str();
  engine->add_option("--prefix", options.prefix_tokens, "tokens of the long prompt")
      ->check(CLI::Range(64, INT32_MAX))
      ->capture_default_str();
  engine->add_option("--repeats", options.repeats, "medians are over so many runs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  engine->add_option("--threads", options.threads, "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  engine->add_option("--cpu", flags->cpu, "kernels: auto, scalar, avx2, avx512, avx512_bf16")
      ->capture_default_str();
  engine->add_flag("--json", flags->json, "one JSON object instead of a table");
  engine->callback([flags, &run] { run = [flags] { return run_bench_engine(*flags); }; });
}

}  // namespace kvlane
