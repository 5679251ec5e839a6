// `kvlane eval search`: the strongest setting of a KV format that keeps enough quality.
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_search.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/eval_input.h"
#include "cli/eval_tasks.h"
#include "cli/progress.h"
#include "eval/search.h"

namespace kvlane {
namespace {

const std::map<std::string, SearchMetric> kMetrics = {{"perplexity", SearchMetric::kPerplexity},
                                                      {"agreement", SearchMetric::kAgreement},
                                                      {"divergence", SearchMetric::kDivergence}};

struct SearchFlags {
  EvalInputFlags input;
  std::string pattern;
  std::vector<std::string> values;
  std::string range;
  int steps = 0;  // 0: every whole number of the range
  double retain = 0.99;
  std::string metric = "perplexity";
  int context = 0;
  int stride = 0;
  std::optional<int> window_prompt;
  std::string out;
  bool json = false;
};

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const auto& [name, metric] : kMetrics) names.push_back(name);
  return names;
}

constexpr int kStepsMax = 1000;

// "0:8", or "0.02:0" for a knob that is weakest at 0.
Result<std::vector<std::string>> values_of(const SearchFlags& flags) {
  if (flags.values.empty() == flags.range.empty()) {
    return invalid_argument("say what is tried, either --values A,B,... or --range FROM:TO");
  }
  if (!flags.values.empty()) return flags.values;
  const std::size_t colon = flags.range.find(':');
  double first = 0;
  double last = 0;
  if (colon == std::string::npos || !read_number(flags.range.substr(0, colon), first) ||
      !read_number(flags.range.substr(colon + 1), last) || !std::isfinite(first) ||
      !std::isfinite(last) || first == last) {
    return invalid_argument("a range is two different numbers FROM:TO, not '" + flags.range + "'");
  }
  const double whole = std::abs(last - first) + 1;
  if (flags.steps == 0 && (first != std::round(first) || last != std::round(last))) {
    return invalid_argument("a range that is not of whole numbers needs --steps");
  }
  if (flags.steps == 0 && whole > kStepsMax) {
    return invalid_argument("the range " + flags.range + " has too many numbers: give --steps");
  }
  return spread_values(first, last, flags.steps > 0 ? flags.steps : static_cast<int>(whole));
}

// What was measured of one setting.
struct Tried {
  std::string format;
  double bytes = 0;  // a token
};

// Measures settings over the text, each beside bf16.
class TextSearch {
 public:
  TextSearch(const SearchFlags& flags, const EvalInput& input, EvalRun& run)
      : flags_(flags), input_(input), run_(run), text_(text_task(flags, input)) {}

  // All formats, made before the first is measured: a value that is wrong is told at once.
  Status make(const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      KVLANE_ASSIGN(const std::string text, fill_pattern(flags_.pattern, value));
      KVLANE_ASSIGN(EvalFormat format, make_eval_format(text, input_.format_context()));
      if (format.is_reference()) return invalid_argument("bf16 has no settings to search");
      formats_.push_back(std::move(format));
    }
    tried_.resize(formats_.size());
    return {};
  }

  Result<Interval> measure(int setting) {
    run_.formats = {EvalFormat(), formats_[setting]};
    run_.report.measures.clear();
    KVLANE_TRY(run_text_task(text_, run_));
    const std::string name = formats_[setting].name();
    tried_[setting].format = name;
    for (const Measure& each : run_.report.measures) {
      if (each.format == name && each.metric == "bytes") tried_[setting].bytes = each.value.value;
    }
    return kept_quality(run_.report, name, kMetrics.at(flags_.metric));
  }

  int settings() const { return static_cast<int>(formats_.size()); }
  const TextTask& text() const { return text_; }
  std::string name(int setting) const { return formats_[setting].name(); }
  const Tried& tried(int setting) const { return tried_[setting]; }

 private:
  static TextTask text_task(const SearchFlags& flags, const EvalInput& input) {
    EvalTaskFlags task;
    task.context = flags.context;
    task.stride = flags.stride;
    task.window_prompt = flags.window_prompt;
    return make_text_task(task, input.text, *input.model);
  }

  const SearchFlags& flags_;
  const EvalInput& input_;
  EvalRun& run_;
  const TextTask text_;
  std::vector<EvalFormat> formats_;
  std::vector<Tried> tried_;
};

void print_search_json(const SearchFlags& flags, const EvalReport& report,
                       const SearchResult& result, const TextSearch& search) {
  const auto step_json = [&](const SearchStep& step) {
    return nlohmann::ordered_json{{"format", search.name(step.setting)},
                                  {"kept", step.kept.value},
                                  {"low", step.kept.low},
                                  {"high", step.kept.high},
                                  {"bytes", search.tried(step.setting).bytes}};
  };
  nlohmann::ordered_json json = {{"machine", report.machine}, {"commit", report.commit},
                                 {"command", report.command}, {"metric", flags.metric},
                                 {"retain", flags.retain},    {"found", nullptr}};
  for (const EvalFact& fact : report.facts) json["facts"][fact.name] = fact.value;
  for (const SearchStep& step : result.steps) {
    json["steps"].push_back(step_json(step));
    if (step.setting == result.found) json["found"] = step_json(step);
  }
  json["doubts"] = result.doubts;
  std::cout << json.dump() << '\n';
}

void print_search(const SearchFlags& flags, const SearchResult& result, const TextSearch& search) {
  std::size_t width = 0;
  for (const SearchStep& step : result.steps) {
    width = std::max(width, search.name(step.setting).size());
  }
  std::cout << std::setprecision(5);
  for (const SearchStep& step : result.steps) {
    std::cout << std::left << std::setw(static_cast<int>(width)) << search.name(step.setting)
              << "  keeps " << step.kept.value << " [" << step.kept.low << ", " << step.kept.high
              << "] at " << search.tried(step.setting).bytes << " bytes a token"
              << (step.kept.value >= flags.retain ? "" : ": not enough") << '\n';
  }
  if (result.found) {
    std::cout << "strongest that keeps " << flags.retain << " of " << flags.metric << ": "
              << search.name(*result.found) << '\n';
  } else {
    std::cout << "none keeps " << flags.retain << " of " << flags.metric << '\n';
  }
  for (const std::string& doubt : result.doubts) std::cout << "note: " << doubt << '\n';
}

Status run_search(const SearchFlags& flags, const std::string& typed) {
  KVLANE_ASSIGN(const std::vector<std::string> values, values_of(flags));
  KVLANE_ASSIGN(const EvalInput input, load_eval_input(flags.input, true));
  EvalRun run = make_eval_run(input, flags.input, "kvlane eval search " + typed);
  TextSearch search(flags, input, run);
  KVLANE_TRY(search.make(values));
  KVLANE_TRY(open_eval_log(flags.out, run));
  run.report.facts.push_back({"context", std::to_string(search.text().context)});
  run.report.facts.push_back({"stride", std::to_string(search.text().stride)});
  SearchResult result;
  {
    Progress progress("searching");
    int measured = 0;
    const auto measure = [&](int setting) {
      const std::string what = std::to_string(++measured) + ": " + search.name(setting);
      run.progress = [&progress, what](const std::string&, std::uint64_t done,
                                       std::uint64_t total) {
        progress.show(what + ", window " + std::to_string(done) + " of " + std::to_string(total));
      };
      return search.measure(setting);
    };
    KVLANE_ASSIGN(result, search_strongest(search.settings(), flags.retain, measure,
                                           [&](int setting) { return search.name(setting); }));
  }
  if (flags.json) {
    print_search_json(flags, run.report, result, search);
  } else {
    print_search(flags, result, search);
  }
  return {};
}

}  // namespace

void add_eval_search(Command& eval) {
  Command command = eval.add_subcommand(
      "search", "The strongest setting of a KV format that keeps a share of quality, by bisection");
  command.footer(
      "Example: kvlane eval search models/kvlane-tiny-gqa --text README.md "
      "--format 'kivi:bits=2,recent={}' --values 0,1,2,4,8 --retain 0.99");
  const auto flags = std::make_shared<SearchFlags>();
  command.add_option("DIR,--model", flags->input.directory, "Hugging Face model directory")
      .required();
  command.add_option("--format", flags->pattern, "KV format with {} where a value goes").required();
  command.add_option("--values", flags->values, "values from the strongest to the weakest")
      .delimiter(',');
  command.add_option("--range", flags->range, "or numbers FROM:TO, the strongest first");
  command
      .add_option("--steps", flags->steps,
                  "how many of the range (default: every whole number in it)")
      .check(range(2, kStepsMax));
  command.add_option("--retain", flags->retain, "share of quality that is to be kept")
      .check(range(0.0, 1.0))
      .capture_default_str();
  command
      .add_option("--metric", flags->metric,
                  "perplexity (bf16's over the format's), agreement (of the most likely token) or "
                  "divergence (exp of minus the mean KL)")
      .check(one_of(metric_names()))
      .capture_default_str();
  add_window_flags(command, flags->context, flags->stride, flags->window_prompt);
  add_eval_input_flags(command, flags->input);
  command.add_option("--out", flags->out,
                     "folder whose eval.jsonl keeps what is measured; an interrupted run goes on");
  command.add_flag("--json", flags->json, "one JSON object instead of lines");
  command.action([flags, command] { return run_search(*flags, command.typed_options()); });
}

}  // namespace kvlane
