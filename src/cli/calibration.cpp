// Flags, text and model of a calibration.
// SPDX-License-Identifier: Apache-2.0
#include "cli/calibration.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "calib/text_tokens.h"
#include "cli/progress.h"
#include "cpu/parallel.h"

namespace kvlane {

void add_calibration_options(CLI::App& command, CalibrationFlags& flags, const char* out_help) {
  command.add_option("DIR,--model", flags.directory, "Hugging Face model directory")->required();
  command.add_option("--text", flags.text, "UTF-8 text like that of real prompts")->required();
  command.add_option("--out", flags.out, out_help)->required();
  command.add_option("--tokens", flags.tokens, "most tokens of the text that are computed")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  command.add_option("--cpu", flags.cpu, "kernels: auto, or a tier of `kvlane version -v`")
      ->capture_default_str();
  command.add_flag("--json", flags.json, "summary as one JSON object");
}

Result<CalibrationInput> load_calibration_input(const CalibrationFlags& flags) {
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  CalibrationInput input;
  KVLANE_ASSIGN(input.tokens, read_text_tokens(flags.directory, flags.text,
                                               static_cast<std::size_t>(flags.tokens)));
  {
    Progress progress("loading " + flags.directory);
    KVLANE_ASSIGN(input.model,
                  Model::load(flags.directory, {.isa = isa, .progress = progress.counter()}));
  }
  const int vocab = input.model->config().vocab;
  const auto bad = std::ranges::find_if(
      input.tokens, [&](std::int32_t token) { return token < 0 || token >= vocab; });
  if (bad != input.tokens.end()) {
    return invalid_argument("the tokenizer gives token " + std::to_string(*bad) +
                            ", which the model does not know");
  }
  return input;
}

}  // namespace kvlane
