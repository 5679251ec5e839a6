// Questions that have one right answer, from files in the style of GSM8K and HumanEval.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "eval/eval_run.h"
#include "model/tokenizer.h"

namespace kvlane {

// A plain file of JSON lines (not compressed), each with either
//   "question" and "answer", which ends in "#### NUMBER" (GSM8K), or
//   "prompt" and "canonical_solution" (HumanEval). Code is compared and never run, so this is not
//   the pass rate that others report.
struct ExactMatchTask {
  std::filesystem::path file;
  const Tokenizer* tokenizer;
  int shots = 4;         // lines at the file's beginning that are shown, and not asked
  int questions = 100;   // that follow them: at most
  int new_tokens = 256;  // of an answer
};

// The task has the file's name. Questions that do not fit into the model's context are left out,
// and the report says how many. Measures for GSM8K: correct (share with the right final number);
// for HumanEval: exact (share equal to the solution but for blanks at line ends), first_line (share
// whose first line is), edit_similarity to the solution. For both: same_as_bf16 (share of equal
// answers).
Status run_exact_match_task(const ExactMatchTask& task, EvalRun& run);

// The number after "####", else the last one in the text, without commas, "$" and needless zeros:
// "1,234.50" is "1234.5". Nullopt where there is none.
std::optional<std::string> final_number(std::string_view text);

// The text before the first of the marks that show that a completion of a Python function is over:
// a line that is not indented.
std::string_view function_body(std::string_view text);

}  // namespace kvlane
