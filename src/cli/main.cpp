// The program kvlane: parses the command line and runs one subcommand.
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <iostream>

#include "cli/command.h"
#include "cli/environment.h"

namespace {

void add_commands(kvlane::Command& app) {
  app.require_subcommand();
  app.footer("Example: kvlane up models/kvlane-tiny-gqa");
  for (const auto add :
       {kvlane::add_serve, kvlane::add_up, kvlane::add_prefill, kvlane::add_decode,
        kvlane::add_gateway, kvlane::add_generate, kvlane::add_inspect, kvlane::add_synth,
        kvlane::add_file, kvlane::add_store, kvlane::add_calibrate, kvlane::add_eval,
        kvlane::add_profile, kvlane::add_plan, kvlane::add_simulate, kvlane::add_rank,
        kvlane::add_bench, kvlane::add_version}) {
    add(app);
  }
}

}  // namespace

int main(int argc, char** argv) {
  kvlane::choose_how_to_wait(argv);
  kvlane::allow_many_open_files();
  try {
    return kvlane::run_command_line(
        argc, argv,
        "kvlane keeps the KV cache of language models small and ships it between workers.",
        add_commands);
  } catch (const std::exception& error) {
    std::cerr << "kvlane: " << error.what() << '\n';
    return 1;
  }
}
