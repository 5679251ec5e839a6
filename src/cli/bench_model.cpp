// `kvlane bench model`: speed of one model on this machine.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>

#include "bench/model_bench.h"
#include "cli/bench.h"
#include "model/checkpoint.h"

namespace kvlane {
namespace {

struct BenchModelFlags {
  std::string directory;
  std::string cpu = "auto";
  int threads = 0;
  int prompt = 0;  // 0: as many as usual, or as the context has room for
  int decode = 16;
  int batch = 16;
  int repeats = 5;
  bool json = false;

  std::string command() const {
    return "kvlane bench model " + directory + " --prompt " + std::to_string(prompt) +
           " --decode " + std::to_string(decode) + " --batch " + std::to_string(batch) +
           " --repeats " + std::to_string(repeats) + " --cpu " + cpu +
           (threads > 0 ? " --threads " + std::to_string(threads) : "");
  }
};

Status run_bench_model(BenchModelFlags flags) {
  ModelBenchOptions options;
  if (flags.prompt == 0) {
    KVLANE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(flags.directory));
    flags.prompt = std::min(options.prompt_tokens, checkpoint.config().context - flags.decode);
  }
  options.directory = flags.directory;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  options.threads = flags.threads;
  options.prompt_tokens = flags.prompt;
  options.decode_tokens = flags.decode;
  options.batch = flags.batch;
  options.repeats = flags.repeats;
  KVLANE_ASSIGN(Report report, measure_with_progress("bench model", options, bench_model));
  print_report(std::move(report), flags.command(), flags.json);
  return {};
}

}  // namespace

void add_bench_model(Command& bench) {
  Command model = bench.add_subcommand(
      "model", "Speed of prefill and decode, and how near products come to their ceilings");
  model.footer("Example: kvlane bench model models/kvlane-tiny-gqa --prompt 512 --json");
  const auto flags = std::make_shared<BenchModelFlags>();
  model.add_option("DIR,--model", flags->directory, "Hugging Face model directory").required();
  model
      .add_option("--prompt", flags->prompt,
                  "prompt tokens, computed in one pass (default: 512, or what the context allows)")
      .check(range(1, INT32_MAX));
  model.add_option("--decode", flags->decode, "tokens generated after it, one by one")
      .check(range(1, INT32_MAX))
      .capture_default_str();
  model.add_option("--batch", flags->batch, "sequences decoded at once, beside one alone; 1: none")
      .check(range(1, 1024))
      .capture_default_str();
  model.add_option("--repeats", flags->repeats, "medians are over so many runs")
      .check(range(1, INT32_MAX))
      .capture_default_str();
  model.add_option("--threads", flags->threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  model.add_option("--cpu", flags->cpu, "kernels: auto, scalar, avx2, avx512, avx512_bf16")
      .capture_default_str();
  model.add_flag("--json", flags->json, "one JSON object instead of a table");
  model.action([flags] { return run_bench_model(*flags); });
}

}  // namespace kvlane
