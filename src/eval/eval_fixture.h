// A bundled model and runs in 16 bits, in a format that changes nothing and in one without V,
// for tests of tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/test_paths.h"
#include "base/test_results.h"
#include "eval/eval_run.h"
#include "model/forward_fixture.h"
#include "model/tokenizer.h"
#include "quant/format_fixture.h"

namespace kvlane::eval_fixture {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // in reports

inline const std::filesystem::path kModel =
    std::filesystem::path(kSourceDir) / "models/kvlane-tiny-gqa";

inline const Model& model() {
  static const auto loaded = take(Model::load(kModel, {.isa = best_isa()}));
  return *loaded;
}

inline const Tokenizer& tokenizer() {
  static const Tokenizer loaded = take(Tokenizer::load(kModel));
  return loaded;
}

// A text in English, some thousand tokens.
inline std::vector<std::int32_t> text_tokens() {
  const auto file = std::filesystem::path(kSourceDir) / "ARCHITECTURE.md";
  return take(tokenizer().encode(take(read_text_file(file, 1 << 20)), false));
}

inline std::vector<std::int32_t> random_tokens(int count, std::uint32_t seed) {
  return forward_fixture::random_tokens(count, model().config().vocab, seed);
}

// "bf16", "identity", "without-values".
inline EvalRun make_run(EvalLog log = {}) {
  const KvShape shape = model().config().kv_shape();
  return {.model = &model(),
          .formats = {nullptr, std::make_shared<format_fixture::Identity>(shape),
                      std::make_shared<format_fixture::WithoutValues>(shape)},
          .seed = 1,
          .log = std::move(log)};
}

// How often `part` is in `text`.
inline int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// The measure of that name; a failure of the test when there is none.
inline Measure measure_of(const EvalReport& report, const std::string& task,
                          const std::string& format, const std::string& metric) {
  for (const Measure& measure : report.measures) {
    if (measure.task == task && measure.format == format && measure.metric == metric) {
      return measure;
    }
  }
  ADD_FAILURE() << "no measure " << task << " " << format << " " << metric;
  return {};
}

// The identity format has the figures of 16 bits, interval ends included, in all of a task's
// measures but those that are differences by definition.
inline void expect_identity_equals_reference(const EvalReport& report, const std::string& task) {
  int compared = 0;
  for (const Measure& measure : report.measures) {
    if (measure.task != task || measure.format != "identity") continue;
    const Measure reference = measure_of(report, task, "bf16", measure.metric);
    EXPECT_EQ(measure.value.value, reference.value.value) << measure.metric;
    EXPECT_EQ(measure.value.low, reference.value.low) << measure.metric;
    EXPECT_EQ(measure.value.high, reference.value.high) << measure.metric;
    ++compared;
  }
  EXPECT_GT(compared, 0) << task;
}

}  // namespace kvlane::eval_fixture
