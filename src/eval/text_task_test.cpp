// The task over a text: what it reports, and that an interrupted one goes on.
// SPDX-License-Identifier: Apache-2.0
#include "eval/text_task.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temporary_directory.h"
#include "eval/eval_fixture.h"

namespace kvlane {
namespace {

using eval_fixture::make_run;
using eval_fixture::measure_of;
using eval_fixture::model;
using eval_fixture::random_tokens;

TEST(TextTask, ReportsEveryFormatBesideBf16) {
  const auto tokens = random_tokens(500, 1);
  EvalRun run = make_run({});
  ASSERT_TRUE(run_text_task({tokens, 150, 100}, run).ok());
  EXPECT_EQ(run.report.measures.size(), 3U * 7U);
  EXPECT_EQ(measure_of(run.report, "text", "bf16", "ratio").value.value, 1);
  EXPECT_EQ(measure_of(run.report, "text", "bf16", "bits").value.value, 16);
  EXPECT_EQ(measure_of(run.report, "text", "identity", "divergence").value.high, 0);
  EXPECT_EQ(measure_of(run.report, "text", "identity", "agreement").value.value, 1);
  EXPECT_EQ(measure_of(run.report, "text", "identity", "perplexity").value.value,
            measure_of(run.report, "text", "bf16", "perplexity").value.value);
  EXPECT_GT(measure_of(run.report, "text", "without-values", "divergence").value.low, 0);
}

TEST(TextTask, GoesOnWhereItStoppedAndGivesTheSame) {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "log";
  const auto tokens = random_tokens(500, 1);
  EvalRun whole = make_run(take(EvalLog::open(file, "s")));
  ASSERT_TRUE(run_text_task({tokens, 150, 100}, whole).ok());

  // Its first five lines: the subject, the first window of all three, the second of one.
  std::ifstream input(file);
  std::string kept;
  std::string line;
  for (int i = 0; i < 5 && std::getline(input, line); ++i) kept += line + "\n";
  std::ofstream(folder.path() / "cut") << kept;
  EvalRun rest = make_run(take(EvalLog::open(folder.path() / "cut", "s")));
  ASSERT_TRUE(run_text_task({tokens, 150, 100}, rest).ok());
  EXPECT_EQ(eval_json(rest.report), eval_json(whole.report));

  // Nothing is measured again: one window more or less would be another line.
  const auto size = std::filesystem::file_size(file);
  EvalRun again = make_run(take(EvalLog::open(file, "s")));
  ASSERT_TRUE(run_text_task({tokens, 150, 100}, again).ok());
  EXPECT_EQ(std::filesystem::file_size(file), size);
  EXPECT_EQ(eval_json(again.report), eval_json(whole.report));
}

TEST(TextTask, RefusesWindowsThatCannotBe) {
  const auto tokens = random_tokens(50, 1);
  EvalRun run = make_run({});
  EXPECT_FALSE(run_text_task({std::span(tokens).first(1), 10, 10}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, 1, 1}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, model().context() + 1, 10}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, 10, 11}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, 10, 0}, run).ok());
}

TEST(TextTask, RefusesFormatsThatSeeAhead) {
  const KvFormatContext context{.shape = model().config().kv_shape()};
  const auto tokens = random_tokens(50, 1);
  for (const std::string own : {"diag=int8", "rqe=0"}) {
    EvalRun run = make_run({});
    run.formats = take(make_formats("hack:paper," + own, context));
    EXPECT_EQ(run_text_task({tokens, 10, 10}, run).message(),
              "with KV format 'hack:k=2,v=2,p=64," + own +
                  "' a token can see later ones of its block: its perplexity means nothing");
  }
}

TEST(EvalFormats, AreSplitWhereANewOneBegins) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(split_formats("bf16"), (Parts{"bf16"}));
  EXPECT_EQ(split_formats("a:x=1,y=2,b,c:z=1,d:x=1"), (Parts{"a:x=1,y=2", "b", "c:z=1", "d:x=1"}));
  EXPECT_EQ(split_formats("a,,b,"), (Parts{"a", "", "b", ""}))
      << "what is nothing is refused later";
}

TEST(EvalFormats, AreRefusedTwice) {
  const KvFormatContext context{.shape = model().config().kv_shape()};
  EXPECT_EQ(take(make_formats("bf16", context)).size(), 1U);
  EXPECT_EQ(make_formats("bf16,bf16", context).status().message(),
            "KV format 'bf16' is listed twice");
  EXPECT_FALSE(make_formats("bf16,", context).ok());
}

}  // namespace
}  // namespace kvlane
