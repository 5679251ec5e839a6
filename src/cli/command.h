// How a subcommand joins the program: one file each, one line in main.cpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kvlane/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kvlane {

// What the chosen subcommand does, set by its callback once the arguments were parsed. An error
// becomes one sentence on stderr and exit code 1; usage errors are CLI11's and exit code 2.
using Run = std::function<Status()>;

// Each adds one subcommand to `app`, with a help that ends in an example, and a callback that sets
// `run`. Options live in a shared struct that the callback holds.
void add_serve(CLI::App& app, Run& run);
void add_up(CLI::App& app, Run& run);
void add_prefill(CLI::App& app, Run& run);
void add_decode(CLI::App& app, Run& run);
void add_gateway(CLI::App& app, Run& run);
void add_version(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_synth(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_calibrate(CLI::App& app, Run& run);
void add_file(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_store(CLI::App& app, Run& run);
void add_profile(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_rank(CLI::App& app, Run& run);
void add_simulate(CLI::App& app, Run& run);

}  // namespace kvlane
