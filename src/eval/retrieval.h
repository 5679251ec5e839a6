// Whether a model still finds a fact in its context: passkeys and needles by length of the prompt
// and depth of the fact, or prompts from a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "eval/eval_run.h"
#include "eval/needle_prompt.h"
#include "kvlane/status.h"
#include "model/tokenizer.h"

namespace kvlane {

struct RetrievalTask {
  const NeedlePrompts* prompts;  // outlives the task, as the tokenizer does
  const Tokenizer* tokenizer;
  std::string name;     // of the task in reports and in the log: "passkey", "needles"
  std::string variant;  // what prompts depend on besides their place and the seed: part of log keys
  NeedleForm form = NeedleForm::kPasskey;
  int needles = 1;
  std::vector<int> lengths;    // tokens
  std::vector<double> depths;  // 0 ... 1
  int trials = 1;              // prompts of each length and depth
};

// What one format did with one prompt.
struct RetrievalScore {
  bool found = false;          // the greedy answer contains the value
  double log_probability = 0;  // of the value's tokens, put into the model's mouth; nats
  double tokens = 0;
  double top = 0;  // of these tokens, those that were the most likely one at their place
};

// Reads the prompt once or twice; the greedy answer ends soon after the value's length.
Result<RetrievalScore> score_retrieval(FormatRunner& runner, const Tokenizer& tokenizer,
                                       std::span<const std::int32_t> eos,
                                       const NeedlePrompt& prompt);

// Tokens that an answer may have more than the value: runners need room for them too.
inline constexpr int kAnswerSlack = 8;

// The task NAME. Measures over all prompts: found (share, Wilson interval), log_probability (of the
// value's tokens, mean), log_probability_lost (what bf16 has more), top_tokens (share of them). A
// task "NAME, LENGTH tokens" for each length has "found at DEPTH %"; curves over depth go with it.
Status run_retrieval_task(const RetrievalTask& task, EvalRun& run);

struct RetrievalFileTask {
  std::filesystem::path file;
  const Tokenizer* tokenizer;
  int tokens_max = 0;  // of prompt and answer; longer ones are left out, and the report says so
};

// The task "retrieval FILE": the same measures over the prompts of a file of JSON lines {"input":
// text, "target": value}, with "question" for what follows the text (default: the passkey
// question).
Status run_retrieval_file(const RetrievalFileTask& task, EvalRun& run);

}  // namespace kvlane
