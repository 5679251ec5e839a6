// Retrieval: scores by hand, formats beside each other, interruptions, files of examples.
// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "eval/eval_fixture.h"
#include "eval/generation.h"

namespace kvlane {
namespace {

using eval_fixture::make_run;
using eval_fixture::measure_of;
using eval_fixture::model;
using eval_fixture::tokenizer;

constexpr int kTokensMax = 384;

const NeedlePrompts& prompts() {
  static const NeedlePrompts made = take(NeedlePrompts::create(tokenizer(), {}));
  return made;
}

RetrievalTask passkeys() {
  return {.prompts = &prompts(),
          .tokenizer = &tokenizer(),
          .name = "passkey",
          .variant = "a",
          .lengths = {200, 300},
          .depths = {0, 0.5, 1},
          .trials = 2};
}

TEST(Retrieval, FindsWhatTheModelSaysAnyway) {
  auto runners = take(make_runners(make_run(), kTokensMax));
  NeedlePrompt prompt{.tokens = take(tokenizer().encode("Once upon a time there was a"))};
  const auto answer = take(greedy_answer(runners[0], prompt.tokens, {6, {}, {}}));
  // The very tokens.
  prompt.answer = {answer.begin(), answer.begin() + 3};
  prompt.value = tokenizer().decode(prompt.answer);
  RetrievalScore score = take(score_retrieval(runners[0], tokenizer(), {}, prompt));
  EXPECT_TRUE(score.found);
  EXPECT_EQ(score.top, 3);
  EXPECT_LT(score.log_probability, 0);
  // Later in the answer: in other words.
  prompt.answer = {answer.begin() + 4, answer.begin() + 6};
  prompt.value = tokenizer().decode(prompt.answer);
  score = take(score_retrieval(runners[0], tokenizer(), {}, prompt));
  EXPECT_TRUE(score.found);
  EXPECT_LT(score.top, 2);
  // Not at all.
  prompt.answer = take(tokenizer().encode(" 83125", false));
  prompt.value = "83125";
  score = take(score_retrieval(runners[0], tokenizer(), {}, prompt));
  EXPECT_FALSE(score.found);
}

TEST(Retrieval, AFormatThatChangesNothingHasTheFiguresOfTheReference) {
  EvalRun run = make_run();
  ASSERT_TRUE(run_retrieval_task(passkeys(), run).ok());
  const EvalReport& report = run.report;
  eval_fixture::expect_identity_equals_reference(report, "passkey");
  eval_fixture::expect_identity_equals_reference(report, "passkey, 300 tokens");
  const Measure lost = measure_of(report, "passkey", "identity", "log_probability_lost");
  EXPECT_EQ(lost.value.high, 0);
  // The bundled models hardly find anything, but do worse without V.
  EXPECT_GT(measure_of(report, "passkey", "without-values", "log_probability_lost").value.low, 0);
  EXPECT_EQ(report.curves.size(), 3 * 2 * 2U);
  EXPECT_EQ(report.curves[0].x, (std::vector<double>{0, 0.5, 1}));
}

TEST(Retrieval, GoesOnWhereItWasInterrupted) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "log";
  EvalRun whole = make_run(take(EvalLog::open(file, "s")));
  ASSERT_TRUE(run_retrieval_task(passkeys(), whole).ok());
  const auto size = std::filesystem::file_size(file);
  EvalRun again = make_run(take(EvalLog::open(file, "s")));
  ASSERT_TRUE(run_retrieval_task(passkeys(), again).ok());
  EXPECT_EQ(std::filesystem::file_size(file), size) << "nothing is measured again";
  EXPECT_EQ(eval_json(again.report), eval_json(whole.report));
  EXPECT_TRUE(again.log.find("passkey|without-values|a|300|50|1").has_value());
}

TEST(Retrieval, RefusesWhatDoesNotFit) {
  EvalRun run = make_run();
  const auto refused = [&](const RetrievalTask& bad) {
    return run_retrieval_task(bad, run).code() == Code::kInvalidArgument;
  };
  RetrievalTask bad = passkeys();
  bad.lengths = {model().context() - kAnswerSlack + 1};
  EXPECT_TRUE(refused(bad));
  bad = passkeys();
  bad.depths = {1.5};
  EXPECT_TRUE(refused(bad));
  bad = passkeys();
  bad.needles = kNeedlesMax + 1;
  EXPECT_TRUE(refused(bad));
  bad = passkeys();
  bad.trials = 0;
  EXPECT_TRUE(refused(bad));
  EXPECT_TRUE(run.report.measures.empty());
}

TEST(Retrieval, ReadsExamplesFromAFile) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "examples.jsonl";
  const std::string lines =
      R"({"input": "The pass key is 12345. Remember it.", "target": "12345", "other": 7})"
      "\n\n"
      R"({"input": "The code of Rome is 77.", "question": " The code is", "target": "77"})"
      "\n"
      R"({"input": ")" +
      std::string(8000, 'x') + R"(", "target": "1"})" + "\n";
  ASSERT_TRUE(write_file(file, as_byte_view(lines)).ok());
  const RetrievalFileTask examples{file, &tokenizer(), kTokensMax};
  EvalRun run = make_run();
  ASSERT_TRUE(run_retrieval_file(examples, run).ok());
  const EvalReport& report = run.report;
  const std::string task = "retrieval examples.jsonl";
  eval_fixture::expect_identity_equals_reference(report, task);
  ASSERT_EQ(report.not_measured.size(), 1U);
  EXPECT_EQ(report.not_measured[0], task + ": 1 of 3 prompts do not fit into 384 tokens");
  // Two cases: a share of them.
  const double found = measure_of(report, task, "bf16", "found").value.value;
  EXPECT_EQ(found * 2, std::round(found * 2));

  ASSERT_TRUE(write_file(file, as_byte_view("{\"input\": \"x\"}\n")).ok());
  EXPECT_FALSE(run_retrieval_file(examples, run).ok());
  EXPECT_FALSE(run_retrieval_file({directory.path() / "none", &tokenizer(), kTokensMax}, run).ok());
}

}  // namespace
}  // namespace kvlane
