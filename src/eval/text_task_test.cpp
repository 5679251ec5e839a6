// The task over a text: what it reports, and that an interrupted one goes on.
// SPDX-License-Identifier: Apache-2.0
#include "eval/text_task.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "model/expected_fixture.h"
#include "model/temporary_directory.h"
#include "quant/format_fixture.h"

namespace kvlane {
namespace {

using expected_fixture::take;

const Model& model() {
  static const auto loaded = take(Model::load(
      std::filesystem::path(KVLANE_SOURCE_DIR) / "models/kvlane-tiny-gqa", {.isa = best_isa()}));
  return *loaded;
}

std::vector<std::int32_t> random_tokens(int count) {
  std::vector<std::int32_t> tokens(count);
  for (int i = 0; i < count; ++i) {
    tokens[i] = static_cast<std::int32_t>(
        philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % model().config().vocab);
  }
  return tokens;
}

EvalRun make_run(EvalLog log) {
  const KvShape shape = model().config().kv_shape();
  return {.model = &model(),
          .formats = {nullptr, std::make_shared<format_fixture::Identity>(shape),
                      std::make_shared<format_fixture::WithoutValues>(shape)},
          .log = std::move(log)};
}

const Measure& measure(const EvalReport& report, const std::string& format,
                       const std::string& metric) {
  for (const Measure& each : report.measures) {
    if (each.format == format && each.metric == metric) return each;
  }
  ADD_FAILURE() << format << " has no " << metric;
  return report.measures.front();
}

TEST(TextTask, ReportsEveryFormatBesideBf16) {
  const auto tokens = random_tokens(500);
  EvalRun run = make_run({});
  ASSERT_TRUE(run_text_task({tokens, 150, 100}, run).ok());
  EXPECT_EQ(run.report.measures.size(), 3U * 7U);
  EXPECT_EQ(measure(run.report, "bf16", "ratio").value.value, 1);
  EXPECT_EQ(measure(run.report, "bf16", "bits").value.value, 16);
  EXPECT_EQ(measure(run.report, "identity", "divergence").value.high, 0);
  EXPECT_EQ(measure(run.report, "identity", "agreement").value.value, 1);
  EXPECT_EQ(measure(run.report, "identity", "perplexity").value.value,
            measure(run.report, "bf16", "perplexity").value.value);
  EXPECT_GT(measure(run.report, "without-values", "divergence").value.low, 0);
}

TEST(TextTask, GoesOnWhereItStoppedAndGivesTheSame) {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "log";
  const auto tokens = random_tokens(500);
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
  const auto tokens = random_tokens(50);
  EvalRun run = make_run({});
  EXPECT_FALSE(run_text_task({std::span(tokens).first(1), 10, 10}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, 1, 1}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, model().context() + 1, 10}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, 10, 11}, run).ok());
  EXPECT_FALSE(run_text_task({tokens, 10, 0}, run).ok());
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
