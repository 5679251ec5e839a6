// From flags to tasks.
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_tasks.h"

#include <algorithm>
#include <sstream>

#include "calib/text_tokens.h"
#include "cli/flags.h"
#include "crypto/sha256.h"
#include "eval/exact_match.h"
#include "eval/kv_statistics.h"
#include "eval/needle_prompt.h"
#include "eval/retrieval.h"
#include "eval/similarity.h"

namespace kvlane {
namespace {

constexpr int kContextDefault = 2048;
constexpr int kLengthDefault = 256;      // the shortest prompt of retrieval, and then doubled
constexpr int kLengthDefaultMax = 8192;  // longer ones are for who asks for them
constexpr std::size_t kFillerTokensMax = 1 << 20;

bool wants(const EvalTaskFlags& flags, const char* task) {
  return std::ranges::find(flags.tasks, task) != flags.tasks.end();
}

template <class T>
std::string joined(const std::vector<T>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? "," : "") << values[i];
  return text.str();
}

void add_fact(EvalRun& run, const std::string& name, const std::string& value) {
  run.report.facts.push_back({name, value});
}

std::vector<int> default_lengths(int context) {
  const int longest = std::min(context - kAnswerSlack, kLengthDefaultMax);
  std::vector<int> lengths;
  for (int length = kLengthDefault; length < longest; length *= 2) lengths.push_back(length);
  lengths.push_back(longest);
  return lengths;
}

Status run_retrieval(const EvalTaskFlags& flags, const std::string& directory,
                     const Tokenizer& tokenizer, EvalRun& run) {
  std::vector<std::int32_t> filler;
  std::string filler_name = "sentences";
  if (!flags.filler.empty()) {
    KVLANE_ASSIGN(filler, read_text_tokens(directory, flags.filler, kFillerTokensMax));
    KVLANE_ASSIGN(const Sha256Digest digest, sha256(std::as_bytes(std::span(filler))));
    filler_name = to_hex(digest).substr(0, 16);
    add_fact(run, "filler", flags.filler + ", sha256 of its token ids " + filler_name + "...");
  }
  KVLANE_ASSIGN(const NeedlePrompts prompts, NeedlePrompts::create(tokenizer, std::move(filler)));
  RetrievalTask task{
      .prompts = &prompts,
      .tokenizer = &tokenizer,
      .lengths = flags.lengths.empty() ? default_lengths(run.model->context()) : flags.lengths,
      .trials = flags.trials};
  for (const double depth : flags.depths) task.depths.push_back(depth / 100);
  add_fact(run, "retrieval",
           "lengths " + joined(task.lengths) + ", depths " + joined(flags.depths) + " %, " +
               std::to_string(flags.trials) + " prompts each");
  if (wants(flags, "passkey")) {
    task.name = "passkey";
    task.variant = filler_name;
    KVLANE_TRY(run_retrieval_task(task, run));
  }
  if (wants(flags, "needles")) {
    task.name = "needles";
    task.form = NeedleForm::kCities;
    task.needles = flags.needles;
    task.variant = filler_name + "," + std::to_string(flags.needles);
    add_fact(run, "needles", std::to_string(flags.needles) + " in a prompt");
    KVLANE_TRY(run_retrieval_task(task, run));
  }
  return {};
}

Status run_text(const EvalTaskFlags& flags, std::span<const std::int32_t> text, EvalRun& run) {
  const TextTask task = make_text_task(flags, text, *run.model);
  add_fact(run, "context", std::to_string(task.context));
  add_fact(run, "stride", std::to_string(task.stride));
  if (const int prompt = prompt_tokens(task, run); prompt > 0) {
    add_fact(run, "prompt of a window", std::to_string(prompt));
  }
  return run_text_task(task, run);
}

Status run_similarity(const EvalTaskFlags& flags, const Tokenizer& tokenizer,
                      std::span<const std::int32_t> text, EvalRun& run) {
  add_fact(run, "similarity",
           std::to_string(flags.prompts) + " prompts of " + std::to_string(flags.prompt_tokens) +
               " tokens, " + std::to_string(flags.new_tokens) + " new ones");
  return run_similarity_task({.tokens = text,
                              .tokenizer = &tokenizer,
                              .prompts = flags.prompts,
                              .prompt_tokens = flags.prompt_tokens,
                              .new_tokens = flags.new_tokens},
                             run);
}

Status run_files(const EvalTaskFlags& flags, const Tokenizer& tokenizer, EvalRun& run) {
  for (const std::string& file : flags.retrieval_files) {
    add_fact(run, "retrieval file", file);
    KVLANE_TRY(run_retrieval_file({file, &tokenizer, run.model->context()}, run));
  }
  for (const std::string& file : flags.question_files) {
    add_fact(run, "questions",
             file + ", after " + std::to_string(flags.shots) + " examples, answers of at most " +
                 std::to_string(flags.answer_tokens) + " tokens");
    KVLANE_TRY(run_exact_match_task({.file = file,
                                     .tokenizer = &tokenizer,
                                     .shots = flags.shots,
                                     .questions = flags.questions,
                                     .new_tokens = flags.answer_tokens},
                                    run));
  }
  return {};
}

void add_retrieval_flags(Command& command, EvalTaskFlags& flags) {
  command
      .add_option("--lengths", flags.lengths,
                  "tokens of prompts of passkey and needles (default: 256, 512, ... and what fits "
                  "into the model's context)")
      .delimiter(',')
      .check(range(1, 1 << 24));
  command.add_option("--depths", flags.depths, "where the needle lies in the filler, in percent")
      .delimiter(',')
      .check(number_between(0, 100))
      .capture_default_str();
  command.add_option("--trials", flags.trials, "prompts of each length and depth")
      .check(range(1, 1 << 20))
      .capture_default_str();
  command.add_option("--needles", flags.needles, "cities with a number in a prompt of needles")
      .check(range(1, kNeedlesMax))
      .capture_default_str();
  command.add_option("--filler", flags.filler,
                     "UTF-8 text that needles are hidden in (default: a few sentences, repeated)");
  command.add_option("--retrieval-file", flags.retrieval_files,
                     "JSON lines with \"input\" and \"target\": prompts of retrieval");
}

void add_answer_flags(Command& command, EvalTaskFlags& flags) {
  const auto count = [&](const char* name, int& value, const char* what) {
    command.add_option(name, value, what).check(range(1, 1 << 24)).capture_default_str();
  };
  count("--prompts", flags.prompts, "prompts that similarity cuts out of the text");
  count("--prompt-tokens", flags.prompt_tokens, "of such a prompt");
  count("--new-tokens", flags.new_tokens, "that follow it");
  command.add_option("--questions-file", flags.question_files,
                     "JSON lines in the style of GSM8K or HumanEval (code is compared, never run)");
  command.add_option("--shots", flags.shots, "its first lines, shown as examples and not asked")
      .check(range(0, 1 << 10))
      .capture_default_str();
  count("--questions", flags.questions, "most of its questions that are asked");
  count("--answer-tokens", flags.answer_tokens, "most tokens of an answer to one");
}

}  // namespace

void add_eval_task_flags(Command& command, EvalTaskFlags& flags) {
  command
      .add_option("--tasks", flags.tasks,
                  "what is measured: text, similarity, kv (these read --text), passkey, needles; "
                  "none for files alone")
      .delimiter(',')
      .check(one_of({"text", "similarity", "kv", "passkey", "needles", "none"}))
      .capture_default_str();
  add_window_flags(command, flags.context, flags.stride, flags.window_prompt);
  add_retrieval_flags(command, flags);
  add_answer_flags(command, flags);
}

void add_window_flags(Command& command, int& context, int& stride,
                      std::optional<int>& window_prompt) {
  command
      .add_option("--context", context,
                  "tokens of a window of text (default: the model's context, at most 2048)")
      .check(range(2, 1 << 24));
  command
      .add_option("--stride", stride,
                  "tokens from window to window (default: the context); a smaller one gives every "
                  "scored token more text before it")
      .check(range(1, 1 << 24));
  command
      .add_option(
          "--window-prompt", window_prompt,
          "first tokens of a window that are a prompt and not scored; h2o and keyformer evict "
          "tokens at its end (default: half of the context with these, else 0)")
      .check(range(0, 1 << 24));
}

TextTask make_text_task(const EvalTaskFlags& flags, std::span<const std::int32_t> text,
                        const Model& model) {
  TextTask task{.tokens = text,
                .context = flags.context,
                .stride = flags.stride,
                .prompt = flags.window_prompt};
  if (task.context == 0) task.context = std::min(kContextDefault, model.context());
  if (task.stride == 0) task.stride = task.context;
  return task;
}

bool needs_text(const EvalTaskFlags& flags) {
  return wants(flags, "text") || wants(flags, "similarity") || wants(flags, "kv");
}

Status run_eval_tasks(const EvalTaskFlags& flags, const std::string& directory,
                      const Tokenizer& tokenizer, std::span<const std::int32_t> text,
                      EvalRun& run) {
  if (wants(flags, "text")) KVLANE_TRY(run_text(flags, text, run));
  if (wants(flags, "kv")) {
    const int context = flags.context > 0 ? flags.context : kContextDefault;
    const auto length = static_cast<std::size_t>(std::min(context, run.model->context()));
    KVLANE_TRY(run_kv_statistics_task({text.first(std::min(length, text.size()))}, run));
  }
  if (wants(flags, "passkey") || wants(flags, "needles")) {
    KVLANE_TRY(run_retrieval(flags, directory, tokenizer, run));
  }
  if (wants(flags, "similarity")) KVLANE_TRY(run_similarity(flags, tokenizer, text, run));
  return run_files(flags, tokenizer, run);
}

}  // namespace kvlane
