// The program kvlane: parses the command line and runs one subcommand.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>

#include "cli/command.h"
#include "cli/environment.h"
#include "cli/numbers.h"

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

// Messages quote what was typed, which may be anything.
std::string one_line(std::string text) {
  constexpr std::size_t kBytesMax = 200;
  if (text.size() > kBytesMax) text.replace(kBytesMax, std::string::npos, "...");
  for (char& c : text) {
    if (c >= 0 && c < ' ') c = ' ';
  }
  return text;
}

// "kvlane bench codec": the commands that were typed.
std::string typed_command(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app.get_name()
                          : app.get_name() + " " + typed_command(*commands.front());
}

// One sentence for a person, and where to read on.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string message = error.what();
  if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
    // CLI11 only sees that no command it knows was given.
    message = "there is no command '" + std::string(argv[1]) + "'";
  } else if (message == "--model is required") {
    // Of two names CLI11 tells the one that hardly anybody types.
    message = "a model directory is required";
  }
  return one_line(std::move(message)) + "; see " + typed_command(app) + " --help";
}

int run_program(int argc, char** argv) {
  CLI::App app("kvlane keeps the KV cache of language models small and ships it between workers.",
               "kvlane");
  app.require_subcommand(1);
  app.footer("Example: kvlane up models/kvlane-tiny-gqa");
  kvlane::Run run;
  for (const auto add :
       {kvlane::add_serve, kvlane::add_up, kvlane::add_prefill, kvlane::add_decode,
        kvlane::add_gateway, kvlane::add_generate, kvlane::add_inspect, kvlane::add_synth,
        kvlane::add_file, kvlane::add_store, kvlane::add_calibrate, kvlane::add_eval,
        kvlane::add_profile, kvlane::add_plan, kvlane::add_simulate, kvlane::add_rank,
        kvlane::add_bench, kvlane::add_version}) {
    add(app, run);
  }
  try {
    app.parse(argc, argv);
    kvlane::check_numbers(app);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::cerr << "kvlane: " << usage_error(app, error, argc, argv) << '\n';
    return kUsage;
  }
  kvlane::allow_many_open_files();
  const kvlane::Status status = run();
  if (status.ok()) return 0;
  std::cerr << "kvlane: " << status.message() << '\n';
  return kFailure;
}

}  // namespace

int main(int argc, char** argv) {
  kvlane::choose_how_to_wait(argv);
  try {
    return run_program(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "kvlane: " << error.what() << '\n';
    return kFailure;
  }
}
