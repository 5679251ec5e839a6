// The strongest of a method's settings that still keeps a given share of quality, by bisection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/eval_run.h"
#include "eval/text_task.h"
#include "kvlane/status.h"

namespace kvlane {

struct SearchStep {
  int setting;
  Interval kept;  // share of quality, 1: all of it
};

struct SearchResult {
  std::optional<int> found;         // nullopt: not even the weakest keeps enough
  std::vector<SearchStep> steps;    // in the order in which they were measured
  std::vector<std::string> doubts;  // sentences on what the result rests on and may not hold
};

// Settings 0 ... count - 1 (count >= 1) are from the strongest to the weakest. Assumes that weaker
// ones keep more: measures the weakest, then bisects, so about log2(count) + 1 settings are
// measured, and says where what was measured contradicts that. `name` says a setting in a sentence.
Result<SearchResult> search_strongest(int count, double retain,
                                      const std::function<Result<Interval>(int)>& measure,
                                      const std::function<std::string(int)>& name);

// What is kept of quality, as a share:
//   perplexity   that of bf16 / that of the format
//   agreement    tokens with the same most likely next one as in bf16
//   divergence   exp(-mean KL), the geometric mean of what is left of the text's likelihood
enum class SearchMetric { kPerplexity, kAgreement, kDivergence };

// From the measures of the task "text" that are about `format`.
Result<Interval> kept_quality(const EvalReport& report, const std::string& format,
                              SearchMetric metric);

// `pattern` with `value` in place of its one "{}"; an error when it has none, or several.
Result<std::string> fill_pattern(const std::string& pattern, const std::string& value);

// The values from `first` to `last`, `count` >= 2 of them, evenly spread. Between whole numbers
// they are whole numbers, and fewer where several would be the same.
std::vector<std::string> spread_values(double first, double last, int count);

}  // namespace kvlane
