// `kvlane bench`: measurements in one form; docs/bench.md lists the figures.
// SPDX-License-Identifier: Apache-2.0
#include "cli/bench.h"

#include <CLI/CLI.hpp>

namespace kvlane {

void add_bench(CLI::App& app, Run& run) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure; docs/bench.md lists the figures");
  bench->require_subcommand(1);
  bench->footer("Example: kvlane bench model models/kvlane-tiny-gqa");
  add_bench_model(*bench, run);
  add_bench_engine(*bench, run);
}

}  // namespace kvlane
