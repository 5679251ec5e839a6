// What the subcommands of `kvlane calibrate` share: a model, and a text to run it over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "kvlane/status.h"
#include "model/model.h"

namespace kvlane {

struct CalibrationFlags {
  std::string directory;
  std::string text;
  std::string out;
  std::string weights = "gradients";  // of `kvlane calibrate tables`
  std::vector<std::string> formats;   // of `kvlane calibrate tables`: such as zack:keep=0.5+kvquant
  std::string other_text;             // of `kvlane calibrate zack`; empty: none
  int tokens = 32768;
  int tokens_min = 1;  // fewer are refused
  int threads = 0;
  std::string cpu = "auto";
  bool json = false;
};

// All but --weights, --for and --other-text. out_help: what --out is.
void add_calibration_options(Command& command, CalibrationFlags& flags, const char* out_help);

struct CalibrationInput {
  std::unique_ptr<Model> model;
  std::vector<std::int32_t> tokens;  // all inside the model's vocabulary
  std::vector<std::int32_t> other;   // of the other text, likewise
};

// Loads them, with progress on the terminal.
Result<CalibrationInput> load_calibration_input(const CalibrationFlags& flags);

// Refuses to write over what is at --out, unless `read` says that it is such a file already.
Status check_out(const CalibrationFlags& flags,
                 const std::function<Status(const std::string&)>& read);

// `kvlane calibrate tables`.
void add_calibrate_tables(Command& parent);
// `kvlane calibrate zack`.
void add_calibrate_zack(Command& parent);

}  // namespace kvlane
