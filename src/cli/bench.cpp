// `kvlane bench`: measurements in one form; docs/bench.md lists the figures.
// SPDX-License-Identifier: Apache-2.0
#include "cli/bench.h"

#include <iostream>

#include "cli/command.h"

namespace kvlane {

void print_report(Report report, std::string command, bool json) {
  report.command = std::move(command);
  std::cout << (json ? report_json(report) + "\n" : report_table(report));
}

void add_bench(Command& app) {
  Command bench = app.add_subcommand("bench", "Measure; docs/bench.md lists the figures");
  bench.require_subcommand();
  bench.footer("Example: kvlane bench model models/kvlane-tiny-gqa");
  add_bench_model(bench);
  add_bench_engine(bench);
  add_bench_serve(bench);
  add_bench_gateway(bench);
  add_bench_transfer(bench);
  add_bench_codec(bench);
  add_bench_attention(bench);
  add_bench_restore(bench);
  add_bench_store(bench);
}

}  // namespace kvlane
