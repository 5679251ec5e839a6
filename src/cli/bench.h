// The subcommands of `kvlane bench`, one file each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/command.h"

namespace kvlane {

// As those of cli/command.h, below `bench`.
void add_bench_model(CLI::App& bench, Run& run);
void add_bench_engine(CLI::App& bench, Run& run);
void add_bench_serve(CLI::App& bench, Run& run);
void add_bench_gateway(CLI::App& bench, Run& run);
void add_bench_transfer(CLI::App& bench, Run& run);
void add_bench_codec(CLI::App& bench, Run& run);
void add_bench_attention(CLI::App& bench, Run& run);
void add_bench_restore(CLI::App& bench, Run& run);
void add_bench_store(CLI::App& bench, Run& run);

// The options of a subcommand as they were given, secrets left out: what figures are recorded with.
std::string typed_options(const CLI::App& command);

}  // namespace kvlane
