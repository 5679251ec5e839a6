// Bisection, and what it cannot know.
// SPDX-License-Identifier: Apache-2.0
#include "eval/search.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace kvlane {
namespace {

std::string share(double value) {
  std::ostringstream text;
  text.precision(5);
  text << value;
  return text.str();
}

// Stronger settings that kept more than weaker ones.
void doubt_order(std::vector<SearchStep> steps, const std::function<std::string(int)>& name,
                 std::vector<std::string>& doubts) {
  std::ranges::sort(steps, {}, &SearchStep::setting);
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    const SearchStep& strong = steps[i];
    const SearchStep& weak = steps[i + 1];
    if (strong.kept.value <= weak.kept.value) continue;
    const bool sure = strong.kept.low > weak.kept.high;
    doubts.push_back(name(strong.setting) + " kept more than the weaker " + name(weak.setting) +
                     (sure ? ": quality does not grow along these settings, so others that were "
                             "not measured may be better"
                           : ", but within their intervals"));
  }
}

void doubt_edge(const SearchResult& result, double retain,
                const std::function<std::string(int)>& name, std::vector<std::string>& doubts) {
  for (const SearchStep& step : result.steps) {
    if (step.setting == result.found && step.kept.low < retain) {
      doubts.push_back("the interval of " + name(step.setting) + " reaches down to " +
                       share(step.kept.low) + ", below " + share(retain));
    }
    if (step.setting < result.found && step.kept.high >= retain) {
      doubts.push_back("the interval of the stronger " + name(step.setting) + " reaches up to " +
                       share(step.kept.high) + ": with more text it might do");
    }
  }
}

}  // namespace

Result<SearchResult> search_strongest(int count, double retain,
                                      const std::function<Result<Interval>(int)>& measure,
                                      const std::function<std::string(int)>& name) {
  SearchResult result;
  const auto keeps_enough = [&](int setting) -> Result<bool> {
    KVLANE_ASSIGN(const Interval kept, measure(setting));
    result.steps.push_back({setting, kept});
    return kept.value >= retain;
  };
  int too_strong = -1;
  int enough = count - 1;
  KVLANE_ASSIGN(const bool possible, keeps_enough(enough));
  if (!possible) {
    if (count > 1) result.doubts.push_back("stronger settings were not measured");
    return result;
  }
  while (enough - too_strong > 1) {
    const int middle = too_strong + (enough - too_strong) / 2;
    KVLANE_ASSIGN(const bool keeps, keeps_enough(middle));
    (keeps ? enough : too_strong) = middle;
  }
  result.found = enough;
  doubt_order(result.steps, name, result.doubts);
  doubt_edge(result, retain, name, result.doubts);
  return result;
}

Result<Interval> kept_quality(const EvalReport& report, const std::string& format,
                              SearchMetric metric) {
  const char* const wanted = metric == SearchMetric::kPerplexity  ? "ratio"
                             : metric == SearchMetric::kAgreement ? "agreement"
                                                                  : "divergence";
  const auto found = std::ranges::find_if(report.measures, [&](const Measure& each) {
    return each.task == "text" && each.format == format && each.metric == wanted;
  });
  if (found == report.measures.end()) {
    return internal_error("the report has no " + std::string(wanted) + " of " + format);
  }
  const Interval& value = found->value;
  switch (metric) {
    case SearchMetric::kPerplexity: return Interval{1 / value.value, 1 / value.high, 1 / value.low};
    case SearchMetric::kAgreement: return value;
    case SearchMetric::kDivergence: break;
  }
  return Interval{std::exp(-value.value), std::exp(-value.high), std::exp(-value.low)};
}

Result<std::string> fill_pattern(const std::string& pattern, const std::string& value) {
  const std::size_t mark = pattern.find("{}");
  if (mark == std::string::npos || pattern.find("{}", mark + 1) != std::string::npos) {
    return invalid_argument("a format to search needs one {} where the value goes, unlike '" +
                            pattern + "'");
  }
  return std::string(pattern).replace(mark, 2, value);
}

std::vector<std::string> spread_values(double first, double last, int count) {
  const bool whole = first == std::round(first) && last == std::round(last);
  std::vector<std::string> values;
  for (int i = 0; i < count; ++i) {
    const double exact = first + (last - first) * i / (count - 1);
    std::string value = share(whole ? std::round(exact) : exact);
    if (values.empty() || values.back() != value) values.push_back(std::move(value));
  }
  return values;
}

}  // namespace kvlane
