// What `kvlane eval` measures: its tasks and their flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "eval/eval_run.h"
#include "eval/text_task.h"
#include "model/tokenizer.h"

namespace kvlane {

struct EvalTaskFlags {
  std::vector<std::string> tasks = {"text"};
  // text
  int context = 0;  // 0: the model's, at most 2048
  int stride = 0;   // 0: the context
  std::optional<int> window_prompt;
  // passkey, needles
  std::vector<int> lengths;  // empty: 256, 512, ... and what fits into the model's context
  std::vector<double> depths = {0, 25, 50, 75, 100};  // percent
  int trials = 4;
  int needles = 4;
  std::string filler;  // file; empty: a few sentences over and over
  std::vector<std::string> retrieval_files;
  // similarity
  int prompts = 20;
  int prompt_tokens = 256;
  int new_tokens = 128;
  // exact match
  std::vector<std::string> question_files;
  int shots = 4;
  int questions = 100;
  int answer_tokens = 256;
};

void add_eval_task_flags(Command& command, EvalTaskFlags& flags);

// --context, --stride and --window-prompt, of windows of a text.
void add_window_flags(Command& command, int& context, int& stride,
                      std::optional<int>& window_prompt);

// With defaults put in for what the flags leave open.
TextTask make_text_task(const EvalTaskFlags& flags, std::span<const std::int32_t> text,
                        const Model& model);

// Whether a task that is asked for reads the text.
bool needs_text(const EvalTaskFlags& flags);

// Runs what the flags ask for, one task after the other. `text` is empty without one. Adds to the
// report's facts what tasks depend on.
Status run_eval_tasks(const EvalTaskFlags& flags, const std::string& directory,
                      const Tokenizer& tokenizer, std::span<const std::int32_t> text, EvalRun& run);

}  // namespace kvlane
