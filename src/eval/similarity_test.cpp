// Free answers: equal ones are wholly alike, others are not, and a second run reads the log.
// SPDX-License-Identifier: Apache-2.0
#include "eval/similarity.h"

#include <gtest/gtest.h>

#include "base/temporary_directory.h"
#include "eval/eval_fixture.h"
#include "eval/generation.h"
#include "eval/text_similarity.h"

namespace kvlane {
namespace {

using eval_fixture::make_run;
using eval_fixture::measure_of;
using eval_fixture::tokenizer;

const std::vector<std::int32_t>& text() {
  static const auto tokens = eval_fixture::text_tokens();
  return tokens;
}

SimilarityTask task() {
  return {.tokens = text(),
          .tokenizer = &tokenizer(),
          .prompts = 3,
          .prompt_tokens = 100,
          .new_tokens = 24};
}

TEST(Similarity, OfAFormatThatChangesNothingIsWhole) {
  EvalRun run = make_run();
  ASSERT_TRUE(run_similarity_task(task(), run).ok());
  for (const char* const format : {"bf16", "identity"}) {
    for (const char* const metric : {"rouge1", "edit_similarity", "identical"}) {
      EXPECT_EQ(measure_of(run.report, "similarity", format, metric).value.value, 1) << metric;
    }
    EXPECT_EQ(measure_of(run.report, "similarity", format, "same_tokens").value.value, 24);
  }
  EXPECT_LT(measure_of(run.report, "similarity", "without-values", "identical").value.value, 1);
  EXPECT_LT(measure_of(run.report, "similarity", "without-values", "edit_similarity").value.value,
            1);
}

TEST(Similarity, IsThatOfTheAnswers) {
  EvalRun run = make_run();
  ASSERT_TRUE(run_similarity_task(task(), run).ok());
  auto runners = take(make_runners(run, 124));
  double rouge = 0;
  double same = 0;
  for (const std::size_t start : {std::size_t{0}, (text().size() - 100) / 2, text().size() - 100}) {
    const auto prompt = std::span<const std::int32_t>(text()).subspan(start, 100);
    const auto& eos = eval_fixture::model().config().eos;
    const auto reference = take(greedy_answer(runners[0], prompt, {24, eos, {}}));
    const auto answer = take(greedy_answer(runners[2], prompt, {24, eos, {}}));
    rouge += rouge1_f(tokenizer().decode(reference), tokenizer().decode(answer)) / 3;
    std::size_t equal = 0;
    while (equal < std::min(reference.size(), answer.size()) && reference[equal] == answer[equal]) {
      ++equal;
    }
    same += static_cast<double>(equal) / 3;
  }
  const auto of = [&](const char* metric) {
    return measure_of(run.report, "similarity", "without-values", metric).value.value;
  };
  EXPECT_NEAR(of("rouge1"), rouge, 1e-12);
  EXPECT_NEAR(of("same_tokens"), same, 1e-12);
}

TEST(Similarity, GoesOnWhereItWasInterrupted) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "log";
  EvalRun whole = make_run(take(EvalLog::open(file, "s")));
  ASSERT_TRUE(run_similarity_task(task(), whole).ok());
  const auto size = std::filesystem::file_size(file);
  EvalRun again = make_run(take(EvalLog::open(file, "s")));
  ASSERT_TRUE(run_similarity_task(task(), again).ok());
  EXPECT_EQ(eval_json(again.report), eval_json(whole.report));
  EXPECT_EQ(std::filesystem::file_size(file), size);
}

TEST(Similarity, RefusesWhatCannotBe) {
  EvalRun run = make_run();
  SimilarityTask bad = task();
  bad.tokens = bad.tokens.first(99);
  EXPECT_EQ(run_similarity_task(bad, run).message(),
            "the text has 99 tokens, too few for prompts of 100");
  bad = task();
  bad.prompts = 0;
  EXPECT_FALSE(run_similarity_task(bad, run).ok());
  bad = task();
  bad.new_tokens = 1000;
  EXPECT_FALSE(run_similarity_task(bad, run).ok()) << "more than the model's context";
}

}  // namespace
}  // namespace kvlane
