// How a subcommand joins the program: one file each, one line in main.cpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command_line.h"

namespace kvlane {

// Each adds one subcommand to `app`, with a help that ends in an example, and its action. Options
// live in a shared struct that the action holds.
void add_serve(Command& app);
void add_up(Command& app);
void add_prefill(Command& app);
void add_decode(Command& app);
void add_gateway(Command& app);
void add_version(Command& app);
void add_generate(Command& app);
void add_inspect(Command& app);
void add_synth(Command& app);
void add_bench(Command& app);
void add_calibrate(Command& app);
void add_file(Command& app);
void add_eval(Command& app);
void add_store(Command& app);
void add_profile(Command& app);
void add_plan(Command& app);
void add_rank(Command& app);
void add_simulate(Command& app);

}  // namespace kvlane
