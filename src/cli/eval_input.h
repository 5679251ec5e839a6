// What `kvlane eval` and `kvlane eval search` work on: a model, its tokenizer, a text, tables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "eval/eval_run.h"
#include "model/tokenizer.h"
#include "quant/kv_tables.h"

namespace kvlane {

struct EvalInputFlags {
  std::string directory;
  std::string text;    // file; empty: none
  std::string tables;  // file; empty: none
  int tokens = 32768;
  std::uint64_t seed = 1;
  int threads = 0;
  std::string cpu = "auto";
};

// All of them but the directory.
void add_eval_input_flags(Command& command, EvalInputFlags& flags);

struct EvalInput {
  std::unique_ptr<Model> model;
  Tokenizer tokenizer;
  std::vector<std::int32_t> text;    // empty without one
  std::unique_ptr<KvTables> tables;  // empty without any
  std::vector<EvalFact> facts;       // everything of this that figures depend on

  // For formats of this model; refers to this.
  KvFormatContext format_context() const;
};

// Reads what the flags name; the text only with `reads_text`, which needs one.
Result<EvalInput> load_eval_input(const EvalInputFlags& flags, bool reads_text);

// A run over this input without formats, with a report that says where and what it is.
EvalRun make_eval_run(const EvalInput& input, const EvalInputFlags& flags,
                      const std::string& command);

// Opens the log in `folder`, which is made; nothing is kept when its name is empty.
Status open_eval_log(const std::string& folder, EvalRun& run);

}  // namespace kvlane
