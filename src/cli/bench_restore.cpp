// `kvlane bench restore`: what bringing sequences back is worth, with a model on given directories.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "bench/restore_bench.h"
#include "cli/bench.h"
#include "cli/progress.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

struct BenchRestoreFlags {
  std::string model;
  RestoreBenchOptions options;
  std::vector<std::string> directories;
  int threads = 0;
  std::string cpu = "auto";
  bool json = false;
};

Status run_bench_restore(const BenchRestoreFlags& flags, const std::string& typed) {
  RestoreBenchOptions options = flags.options;
  options.directories.assign(flags.directories.begin(), flags.directories.end());
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  std::unique_ptr<Model> model;
  {
    Progress progress("loading " + flags.model);
    KVLANE_ASSIGN(model, Model::load(flags.model, {.isa = isa, .progress = progress.counter()}));
  }
  const auto measure = [&](const RestoreBenchOptions& all) { return bench_restore(*model, all); };
  KVLANE_ASSIGN(Report report, measure_with_progress("bench restore", options, measure));
  print_report(std::move(report), "kvlane bench restore " + typed, flags.json);
  return {};
}

}  // namespace

void add_bench_restore(Command& bench) {
  Command command = bench.add_subcommand(
      "restore", "Time until a stored sequence is back: computed, projected, read, and as planned");
  command.footer(
      "Example: kvlane bench restore models/kvlane-tiny --dir /tmp --tokens 512 --repeats 3");
  const auto flags = std::make_shared<BenchRestoreFlags>();
  RestoreBenchOptions& options = flags->options;
  command.add_option("DIR,--model", flags->model, "Hugging Face model directory").required();
  command
      .add_option("--dir", flags->directories,
                  "directory for the store, one a device: what is written is removed afterwards")
      .required();
  command.add_option("--tokens", options.tokens, "lengths of sequences, multiples of 64")
      .required();
  command.add_option("--repeats", options.repeats, "medians are over so many rounds")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_flag("--ablations", options.ablations,
                   "also time splits by tokens instead of layers, as HCache compares itself with");
  command.add_option("--threads", flags->threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  command.add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags, command] { return run_bench_restore(*flags, command.typed_options()); });
}

}  // namespace kvlane
