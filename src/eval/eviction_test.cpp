// Evaluations of caches that evict tokens: what is scored, what is held, and that tasks end
// prompts.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/temporary_directory.h"
#include "eval/eval_fixture.h"
#include "eval/generation.h"
#include "eval/quality.h"
#include "eval/text_task.h"

namespace kvlane {
namespace {

using eval_fixture::make_run;
using eval_fixture::measure_of;
using eval_fixture::model;
using eval_fixture::random_tokens;

KvFormatContext context() { return {.shape = model().config().kv_shape()}; }

EvalRun run_of(const char* formats, EvalLog log = {}) {
  EvalRun run = make_run(std::move(log));
  run.formats = take(make_formats(formats, context()));
  return run;
}

FormatRunner runner_of(const char* format, int tokens_max) {
  return take(FormatRunner::create(model(), take(make_eval_format(format, context())), tokens_max));
}

TEST(EvalFormat, EvictionStandsAloneOrBehindAFormat) {
  const auto name = [](const char* text) {
    const auto made = make_eval_format(text, context());
    return made.ok() ? made->name() : made.status().message();
  };
  EXPECT_EQ(name("bf16"), "bf16");
  EXPECT_EQ(name("h2o"), "h2o:keep=0.5,recent=0.5");
  EXPECT_EQ(name("bf16+h2o:keep=0.25"), "h2o:keep=0.25,recent=0.5");
  EXPECT_EQ(name("int8+h2o"),
            "tokens can be evicted from caches in bf16 and zack, not in 'int8:sym=1', whose slabs "
            "have no room for single tokens");
  EXPECT_EQ(name("h2o:keep=2"),
            "eviction 'h2o': keep is a share above 0 and up to 1, with at most four decimals, not "
            "'2'");
  EXPECT_EQ(make_formats("h2o,int8,h2o:keep=0.5", context()).status().message(),
            "KV format 'h2o:keep=0.5,recent=0.5' is listed twice");
  EXPECT_EQ(take(make_formats("bf16,keyformer:keep=0.5,tau=2,int8,h2o", context())).size(), 4U);
}

TEST(EvictionRunner, HoldsItsBudgetAndNoMore) {
  FormatRunner runner = runner_of("h2o:keep=0.3", 600);
  const auto tokens = random_tokens(600, 1);
  const std::span<const std::int32_t> all(tokens);
  const double token_bytes =
      static_cast<double>(model().config().kv_shape().block_bytes()) / kBlockTokens;
  const double heads = model().config().layers * model().config().kv_heads;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(runner.append(all.first(400), 0).ok());
    EXPECT_EQ(runner.bytes().all, 400 * token_bytes);
    ASSERT_TRUE(runner.end_prompt().ok());
    EXPECT_EQ(runner.bytes().all, 120 * (token_bytes + 8 * heads));
    ASSERT_TRUE(runner.append(all.subspan(400), 0).ok());
    EXPECT_EQ(runner.tokens(), 600);
    EXPECT_EQ(runner.bytes().all, 120 * (token_bytes + 8 * heads));
    EXPECT_EQ(runner.bytes().tokens, 600);
    EXPECT_NEAR(runner.bytes().bits_sealed(), 16 * 0.2 * (1 + 8 * heads / token_bytes), 1e-12);
    runner.clear();
    EXPECT_EQ(runner.tokens(), 0);
  }
}

TEST(EvictionTextTask, ScoresAllFormatsBehindThePrompt) {
  const auto tokens = random_tokens(500, 1);
  EvalRun run = run_of("h2o:keep=0.2,keyformer:keep=0.9,int8");
  // Windows of 200 tokens at 0, 100, ... 300.
  ASSERT_TRUE(run_text_task({tokens, 200, 100}, run).ok());
  EXPECT_EQ(run.report.measures.size(), 4U * 7U);
  const std::string few = "h2o:keep=0.2,recent=0.5";
  const std::string many = "keyformer:keep=0.9,recent=0.3,tau=1,tau_delta=0.01,seed=0";
  const auto divergence = [&](const std::string& format) {
    return measure_of(run.report, "text", format, "divergence").value.value;
  };
  EXPECT_GT(divergence(few), divergence(many));
  EXPECT_GT(divergence(many), 0);
  EXPECT_LT(measure_of(run.report, "text", few, "bytes").value.value,
            measure_of(run.report, "text", many, "bytes").value.value / 4);
  EXPECT_EQ(measure_of(run.report, "text", "bf16", "bits").value.value, 16);
  EXPECT_LT(measure_of(run.report, "text", few, "bits").value.value, 2.0)
      << "20 of 200 tokens, and what is known of them";

  // The same by hand, for one window.
  FormatRunner reference = runner_of("bf16", 200);
  FormatRunner tested = runner_of("h2o:keep=0.2", 200);
  FormatRunner* const formats[] = {&tested};
  WindowScore score[1];
  ASSERT_TRUE(score_window(reference, formats, std::span(tokens).first(200), 99, score, 100).ok());
  EXPECT_EQ(score[0].tokens, 99);
  EXPECT_GT(score[0].divergence, 0);
}

TEST(EvictionTextTask, GoesOnWhereItStopped) {
  const TemporaryDirectory folder;
  const auto tokens = random_tokens(300, 1);
  EvalRun whole = run_of("h2o", take(EvalLog::open(folder.path() / "log", "s")));
  ASSERT_TRUE(run_text_task({tokens, 150, 75}, whole).ok());
  EvalRun again = run_of("h2o", take(EvalLog::open(folder.path() / "log", "s")));
  ASSERT_TRUE(run_text_task({tokens, 150, 75}, again).ok());
  EXPECT_EQ(eval_json(again.report), eval_json(whole.report));
  // Another prompt is another measurement.
  ASSERT_TRUE(run_text_task({tokens, 150, 75, 20}, again).ok());
  EXPECT_NE(eval_json(again.report), eval_json(whole.report));
}

TEST(EvictionTextTask, RefusesPromptsThatCannotBe) {
  const auto tokens = random_tokens(120, 1);
  EvalRun run = run_of("h2o");
  EXPECT_EQ(run_text_task({tokens, 100, 100, 0}, run).message(),
            "h2o:keep=0.5,recent=0.5 evicts tokens when a prompt ends: windows need a prompt");
  EXPECT_EQ(run_text_task({tokens, 100, 100, 99}, run).message(),
            "the prompt of a window of 100 tokens has 0 to 98, not 99");
  EXPECT_EQ(run_text_task({std::span(tokens).first(40), 100, 100, 50}, run).message(),
            "prompts of 50 tokens leave nothing of this text to score");
}

// With little kept, answers differ from those of the whole cache; the prompt itself is read whole.
TEST(EvictionGeneration, AnswersComeBehindThePrompt) {
  const auto prompt = eval_fixture::text_tokens();
  const std::span<const std::int32_t> start = std::span(prompt).first(300);
  FormatRunner whole = runner_of("bf16", 400);
  FormatRunner few = runner_of("h2o:keep=0.05", 400);
  const auto expected = take(greedy_answer(whole, start, {32, {}, {}}));
  const auto answer = take(greedy_answer(few, start, {32, {}, {}}));
  EXPECT_EQ(few.tokens(), 331);
  EXPECT_EQ(answer.front(), expected.front());
  EXPECT_NE(answer, expected);
  const AnswerScore own = take(score_answer(few, start, answer));
  EXPECT_TRUE(own.is_greedy()) << "put into its mouth, its own answer is its own";
  EXPECT_EQ(own.tokens, 32);
  EXPECT_FALSE(take(score_answer(whole, start, answer)).is_greedy());
}

}  // namespace
}  // namespace kvlane
