// `kvlane bench`: measurements in one form; docs/bench.md lists the figures.
// SPDX-License-Identifier: Apache-2.0
#include "cli/bench.h"

#include <CLI/CLI.hpp>

namespace kvlane {

std::string typed_options(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_name() == "--api-key") continue;
    if (!option->get_positional()) text += option->get_name() + " ";
    if (option->get_expected_max() == 0) continue;  // a flag
    for (const std::string& value : option->results()) text += value + " ";
  }
  if (!text.empty()) text.pop_back();
  return text;
}

void add_bench(CLI::App& app, Run& run) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure; docs/bench.md lists the figures");
  bench->require_subcommand(1);
  bench->footer("Example: kvlane bench model models/kvlane-tiny-gqa");
  add_bench_model(*bench, run);
  add_bench_engine(*bench, run);
  add_bench_serve(*bench, run);
  add_bench_gateway(*bench, run);
  add_bench_transfer(*bench, run);
  add_bench_codec(*bench, run);
  add_bench_attention(*bench, run);
  add_bench_restore(*bench, run);
  add_bench_store(*bench, run);
}

}  // namespace kvlane
