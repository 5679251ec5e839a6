// Marks by hand, files of both kinds, and what happens to questions that do not fit.
// SPDX-License-Identifier: Apache-2.0
#include "eval/exact_match.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "eval/eval_fixture.h"
#include "eval/generation.h"
#include "eval/json_lines.h"

namespace kvlane {
namespace {

using eval_fixture::make_run;
using eval_fixture::measure_of;
using eval_fixture::tokenizer;

TEST(ExactMatch, FindsTheFinalNumber) {
  EXPECT_EQ(final_number("She sells 9 * 2 = $<<9*2=18>>18 a day.\n#### 18"), "18");
  EXPECT_EQ(final_number("#### 1,234.50\nQuestion: 7"), "1234.5");
  EXPECT_EQ(final_number("first 3, then 7-5, and $70,000."), "70000");
  EXPECT_EQ(final_number("it is 7-5"), "5");
  EXPECT_EQ(final_number("a loss of -$12."), "-12");
  EXPECT_EQ(final_number("#### -5"), "-5");
  EXPECT_EQ(final_number("####-5"), "-5");
  EXPECT_EQ(final_number("007"), "7");
  EXPECT_EQ(final_number("0.50"), "0.5");
  EXPECT_EQ(final_number("0.0"), "0");
  EXPECT_EQ(final_number("-0"), "0");
  EXPECT_EQ(final_number("nothing"), std::nullopt);
  EXPECT_EQ(final_number("12 #### none"), std::nullopt);
  EXPECT_EQ(final_number(""), std::nullopt);
}

TEST(ExactMatch, CodeEndsWhereALineIsNotIndented) {
  EXPECT_EQ(function_body("    a = 1\n\n    return a\ndef other():\n    pass"),
            "    a = 1\n\n    return a");
  EXPECT_EQ(function_body("    return 1\n"), "    return 1\n");
  EXPECT_EQ(function_body("    return 1\n\n\nprint(1)"), "    return 1\n\n");
  EXPECT_EQ(function_body(""), "");
}

class ExactMatchFile : public testing::Test {
 protected:
  ExactMatchTask task(const std::string& text, int shots) {
    EXPECT_TRUE(write_file(file(), as_byte_view(text)).ok());
    return {.file = file(), .tokenizer = &tokenizer(), .shots = shots, .new_tokens = 24};
  }
  std::filesystem::path file() const { return directory_.path() / "test.jsonl"; }

  TemporaryDirectory directory_;
};

constexpr const char* kQuestions = R"({"question": "What is 1 + 1?", "answer": "It is 2.\n#### 2"})"
                                   "\n"
                                   R"({"question": "What is 2 + 1?", "answer": "It is 3.\n#### 3"})"
                                   "\n"
                                   R"({"question": "What is 2 + 2?", "answer": "It is 4.\n#### 4"})"
                                   "\n";

TEST_F(ExactMatchFile, OfNumbersIsMarkedForEveryFormat) {
  EvalRun run = make_run();
  ASSERT_TRUE(run_exact_match_task(task(kQuestions, 1), run).ok());
  eval_fixture::expect_identity_equals_reference(run.report, "test.jsonl");
  EXPECT_EQ(measure_of(run.report, "test.jsonl", "identity", "same_as_bf16").value.value, 1);
  EXPECT_EQ(run.report.measures.size(), 3U * 2U);
}

TEST_F(ExactMatchFile, ARightFinalNumberIsCorrect) {
  const ExactMatchTask questions = task(kQuestions, 0);
  const std::string digest = take(read_json_lines(file())).digest;
  // Answers that a log holds are not asked for again, so these are the model's.
  EvalRun run = make_run(take(EvalLog::open(directory_.path() / "log", "s")));
  const auto answer = [&](const std::string& format, int question, const std::string& text) {
    const auto tokens = take(tokenizer().encode(text, false));
    const std::vector<double> values(tokens.begin(), tokens.end());
    const std::string key =
        "test.jsonl|" + format + "|" + digest + "|0|24|" + std::to_string(question);
    EXPECT_TRUE(run.log.add(key, values).ok());
  };
  for (const char* const format : {"bf16", "identity"}) {
    answer(format, 0, " That makes 2.\n#### 2\n");
    answer(format, 1, " 3, I think.\nQuestion: What is 9 + 9?\nAnswer: 18");
    answer(format, 2, " 2 + 2 = 5\n#### 5");
  }
  answer("without-values", 0, " none");
  answer("without-values", 1, " 2 + 1 is 3");
  answer("without-values", 2, "#### 4.0");
  ASSERT_TRUE(run_exact_match_task(questions, run).ok());
  for (const char* const format : {"bf16", "identity", "without-values"}) {
    EXPECT_DOUBLE_EQ(measure_of(run.report, "test.jsonl", format, "correct").value.value, 2.0 / 3);
  }
  EXPECT_EQ(measure_of(run.report, "test.jsonl", "identity", "same_as_bf16").value.value, 1);
  EXPECT_EQ(measure_of(run.report, "test.jsonl", "without-values", "same_as_bf16").value.value, 0);
}

TEST_F(ExactMatchFile, CodeIsComparedWithItsSolution) {
  EvalRun run = make_run();
  auto runners = take(make_runners(run, 512));
  const std::string prompt = "def add(a, b):\n    \"\"\"Adds.\"\"\"\n";
  const auto answer = take(greedy_answer(runners[0], take(tokenizer().encode(prompt)),
                                         {24, eval_fixture::model().config().eos, {}}));
  // The model's own words as the solution: right by definition. As JSON they need no escapes but
  // for quotes and line breaks.
  std::string solution;
  for (const char c : std::string(function_body(tokenizer().decode(answer)))) {
    solution += c == '"' ? "\\\"" : c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  }
  const std::string line =
      R"({"prompt": "def add(a, b):\n    \"\"\"Adds.\"\"\"\n", "canonical_solution": ")";
  ASSERT_TRUE(run_exact_match_task(task(line + solution + "\"}\n", 0), run).ok());
  for (const char* const metric : {"exact", "first_line", "edit_similarity", "same_as_bf16"}) {
    EXPECT_EQ(measure_of(run.report, "test.jsonl", "bf16", metric).value.value, 1) << metric;
  }
  EvalRun wrong = make_run();
  ASSERT_TRUE(run_exact_match_task(task(line + "    return a + b\"}\n", 0), wrong).ok());
  EXPECT_EQ(measure_of(wrong.report, "test.jsonl", "bf16", "exact").value.value, 0);
  EXPECT_LT(measure_of(wrong.report, "test.jsonl", "bf16", "edit_similarity").value.value, 1);
}

TEST_F(ExactMatchFile, QuestionsThatDoNotFitAreCounted) {
  const std::string long_question =
      R"({"question": ")" + std::string(9000, 'x') + R"(", "answer": "#### 1"})" + "\n";
  EvalRun run = make_run();
  ASSERT_TRUE(run_exact_match_task(task(kQuestions + long_question, 2), run).ok());
  ASSERT_EQ(run.report.not_measured.size(), 1U);
  EXPECT_EQ(run.report.not_measured[0],
            "test.jsonl: 1 of 2 questions with their examples do not fit into the context");
  EvalRun none = make_run();
  ASSERT_TRUE(run_exact_match_task(task(long_question, 0), none).ok());
  EXPECT_TRUE(none.report.measures.empty());
}

TEST_F(ExactMatchFile, FilesThatAreNoneAreRefused) {
  EvalRun run = make_run();
  EXPECT_FALSE(run_exact_match_task(task(kQuestions, 3), run).ok()) << "nothing left to ask";
  EXPECT_FALSE(run_exact_match_task(task("", 0), run).ok());
  EXPECT_FALSE(run_exact_match_task(task("not json\n", 0), run).ok());
  EXPECT_FALSE(run_exact_match_task(task("{\"question\": \"x\"}\n", 0), run).ok());
  EXPECT_FALSE(
      run_exact_match_task(task("{\"question\": \"x\", \"answer\": \"none\"}\n", 0), run).ok());
  const Status zipped = run_exact_match_task(task("\x1f\x8b\x08", 0), run);
  EXPECT_NE(zipped.message().find("compressed"), std::string::npos) << zipped.message();
}

}  // namespace
}  // namespace kvlane
