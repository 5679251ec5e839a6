// The subcommands of `kvlane bench`, one file each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "bench/figures.h"
#include "cli/command_line.h"
#include "cli/progress.h"

namespace kvlane {

// As those of cli/command.h, below `bench`.
void add_bench_model(Command& bench);
void add_bench_engine(Command& bench);
void add_bench_serve(Command& bench);
void add_bench_gateway(Command& bench);
void add_bench_transfer(Command& bench);
void add_bench_codec(Command& bench);
void add_bench_attention(Command& bench);
void add_bench_restore(Command& bench);
void add_bench_store(Command& bench);

// Measures with progress on the terminal under `title`, for example "bench store".
template <class Options, class Measure>
Result<Report> measure_with_progress(std::string title, Options options, const Measure& measure) {
  Progress progress(std::move(title));
  options.progress = [&progress](std::string_view what) { progress.show(what); };
  return measure(options);
}

// As one JSON object or as a table. `command` is what the figures are recorded with.
void print_report(Report report, std::string command, bool json);

}  // namespace kvlane
