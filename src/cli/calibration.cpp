// Flags, text and model of a calibration.
// SPDX-License-Identifier: Apache-2.0
#include "cli/calibration.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "calib/text_tokens.h"
#include "cli/progress.h"
#include "cpu/parallel.h"

namespace kvlane {

void add_calibration_options(Command& command, CalibrationFlags& flags, const char* out_help) {
  command.add_option("DIR,--model", flags.directory, "Hugging Face model directory").required();
  command.add_option("--text", flags.text, "UTF-8 text like that of real prompts").required();
  command.add_option("--out", flags.out, out_help).required();
  command.add_option("--tokens", flags.tokens, "most tokens of the text that are computed")
      .check(range(1, 1 << 24))
      .capture_default_str();
  command.add_option("--threads", flags.threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  command.add_option("--cpu", flags.cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--json", flags.json, "summary as one JSON object");
}

namespace {

Result<std::vector<std::int32_t>> read_tokens(const CalibrationFlags& flags,
                                              const std::string& text) {
  KVLANE_ASSIGN(auto tokens,
                read_text_tokens(flags.directory, text, static_cast<std::size_t>(flags.tokens)));
  if (tokens.size() < static_cast<std::size_t>(flags.tokens_min)) {
    return invalid_argument(text + " has " + std::to_string(tokens.size()) + " tokens, at least " +
                            std::to_string(flags.tokens_min) + " are needed");
  }
  return tokens;
}

Status check_vocabulary(std::span<const std::int32_t> tokens, int vocab) {
  const auto bad =
      std::ranges::find_if(tokens, [&](std::int32_t token) { return token < 0 || token >= vocab; });
  if (bad == tokens.end()) return {};
  return invalid_argument("the tokenizer gives token " + std::to_string(*bad) +
                          ", which the model does not know");
}

}  // namespace

Result<CalibrationInput> load_calibration_input(const CalibrationFlags& flags) {
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  if (flags.tokens < flags.tokens_min) {
    return invalid_argument("--tokens is " + std::to_string(flags.tokens) + ", at least " +
                            std::to_string(flags.tokens_min) + " are needed");
  }
  CalibrationInput input;
  KVLANE_ASSIGN(input.tokens, read_tokens(flags, flags.text));
  if (!flags.other_text.empty()) {
    KVLANE_ASSIGN(input.other, read_tokens(flags, flags.other_text));
  }
  {
    Progress progress("loading " + flags.directory);
    KVLANE_ASSIGN(input.model,
                  Model::load(flags.directory, {.isa = isa, .progress = progress.counter()}));
  }
  const int vocab = input.model->config().vocab;
  KVLANE_TRY(check_vocabulary(input.tokens, vocab));
  KVLANE_TRY(check_vocabulary(input.other, vocab));
  return input;
}

Status check_out(const CalibrationFlags& flags,
                 const std::function<Status(const std::string&)>& read) {
  std::error_code error;
  if (!std::filesystem::exists(flags.out, error)) return {};
  const Status status = read(flags.out);
  if (status.ok()) return {};
  return invalid_argument(flags.out + " is there already and stays: " + status.message());
}

}  // namespace kvlane
