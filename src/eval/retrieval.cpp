// Runs prompts through all formats, and sums up by length and depth.
// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include "eval/answer_tokens.h"
#include "eval/bootstrap.h"
#include "eval/generation.h"
#include "eval/json_lines.h"
#include "eval/wilson.h"

namespace kvlane {
namespace {

constexpr std::string_view kPasskeyQuestion = "\nWhat is the pass key? The pass key is";

// scores[case][format]
using Scores = std::vector<std::vector<RetrievalScore>>;

std::string percent(double share) {
  std::ostringstream text;
  text << 100 * share;
  return text.str();
}

// All formats on one prompt.
Result<std::vector<RetrievalScore>> run_case(const std::string& name, const std::string& place,
                                             const NeedlePrompt& prompt, const Tokenizer& tokenizer,
                                             std::vector<FormatRunner>& runners, EvalRun& run) {
  std::vector<RetrievalScore> scores;
  for (FormatRunner& runner : runners) {
    const auto measure = [&]() -> Result<std::vector<double>> {
      KVLANE_ASSIGN(const RetrievalScore score,
                    score_retrieval(runner, tokenizer, run.model->config().eos, prompt));
      return std::vector<double>{score.found ? 1.0 : 0.0, score.log_probability, score.tokens,
                                 score.top};
    };
    KVLANE_ASSIGN(const std::vector<double> values,
                  run.log.find_or_add(name + "|" + runner.name() + "|" + place, measure));
    if (values.size() != 4) return corrupt("the log holds a prompt with other figures");
    scores.push_back({values[0] != 0, values[1], values[2], values[3]});
  }
  return scores;
}

Interval share_found(const Scores& scores, std::size_t format, std::size_t first,
                     std::size_t count) {
  int found = 0;
  for (std::size_t i = first; i < first + count; ++i) found += scores[i][format].found;
  return wilson_interval(found, static_cast<int>(count));
}

// The mean over tokens of `value`, with cases drawn again and again.
Interval mean_over_tokens(const Scores& scores, std::size_t format, std::uint64_t seed,
                          const std::function<double(const std::vector<RetrievalScore>&)>& value) {
  return bootstrap(
      static_cast<int>(scores.size()),
      [&](std::span<const int> weights) {
        double sum = 0;
        double tokens = 0;
        for (std::size_t i = 0; i < scores.size(); ++i) {
          sum += weights[i] * value(scores[i]);
          tokens += weights[i] * scores[i][format].tokens;
        }
        return sum / tokens;
      },
      seed);
}

void add_summary(const std::string& name, const Scores& scores, EvalRun& run) {
  for (std::size_t format = 0; format < run.formats.size(); ++format) {
    const auto add = [&](const std::string& metric, const Interval& value,
                         const std::string& unit) {
      run.report.measures.push_back({name, run.formats[format].name(), metric, value, unit});
    };
    add("found", share_found(scores, format, 0, scores.size()), "share");
    add("log_probability",
        mean_over_tokens(scores, format, run.seed,
                         [&](const auto& each) { return each[format].log_probability; }),
        "nat/token");
    add("log_probability_lost",
        mean_over_tokens(scores, format, run.seed,
                         [&](const auto& each) {
                           return each[0].log_probability - each[format].log_probability;
                         }),
        "nat/token");
    add("top_tokens",
        mean_over_tokens(scores, format, run.seed,
                         [&](const auto& each) { return each[format].top; }),
        "share");
  }
}

// scores hold `trials` cases for each depth, for each length.
void add_grid(const RetrievalTask& task, const Scores& scores, EvalRun& run) {
  const auto trials = static_cast<std::size_t>(task.trials);
  for (std::size_t length = 0; length < task.lengths.size(); ++length) {
    const std::string tokens = std::to_string(task.lengths[length]) + " tokens";
    for (std::size_t format = 0; format < run.formats.size(); ++format) {
      const std::string name = run.formats[format].name();
      Curve found{task.name, name, "found, " + tokens, task.depths, {}};
      Curve likely{task.name, name, "log_probability, " + tokens, task.depths, {}};
      for (std::size_t depth = 0; depth < task.depths.size(); ++depth) {
        const std::size_t first = (length * task.depths.size() + depth) * trials;
        const Interval share = share_found(scores, format, first, trials);
        run.report.measures.push_back({task.name + ", " + tokens, name,
                                       "found at " + percent(task.depths[depth]) + " %", share,
                                       "share"});
        double sum = 0;
        double count = 0;
        for (std::size_t i = first; i < first + trials; ++i) {
          sum += scores[i][format].log_probability;
          count += scores[i][format].tokens;
        }
        found.y.push_back(share.value);
        likely.y.push_back(sum / count);
      }
      run.report.curves.push_back(std::move(found));
      run.report.curves.push_back(std::move(likely));
    }
  }
}

Status check(const RetrievalTask& task, const Model& model) {
  if (task.lengths.empty() || task.depths.empty() || task.trials < 1) {
    return invalid_argument(task.name + " needs at least one length, one depth and one trial");
  }
  if (task.needles < 1 || task.needles > kNeedlesMax) {
    return invalid_argument(task.name + " takes 1 to " + std::to_string(kNeedlesMax) +
                            " needles, not " + std::to_string(task.needles));
  }
  for (const double depth : task.depths) {
    if (!(depth >= 0 && depth <= 1)) {
      return invalid_argument("a needle's depth is from 0 to 100 %, not " + percent(depth) + " %");
    }
  }
  const int longest = *std::ranges::max_element(task.lengths);
  if (longest > model.context() - kAnswerSlack) {
    return invalid_argument(
        task.name + " of " + std::to_string(longest) + " tokens does not fit into the context of " +
        std::to_string(model.context()) + " tokens: " + std::to_string(kAnswerSlack) +
        " more are needed for the answer");
  }
  return {};
}

}  // namespace

Result<RetrievalScore> score_retrieval(FormatRunner& runner, const Tokenizer& tokenizer,
                                       std::span<const std::int32_t> eos,
                                       const NeedlePrompt& prompt) {
  KVLANE_ASSIGN(const AnswerScore told, score_answer(runner, prompt.tokens, prompt.answer));
  RetrievalScore score{told.is_greedy(), told.log_probability, static_cast<double>(told.tokens),
                       static_cast<double>(told.top)};
  if (score.found) return score;
  // It may say the same in other words.
  const int tokens_max = told.tokens + kAnswerSlack;
  KVLANE_ASSIGN(const std::vector<std::int32_t> answer,
                greedy_answer(runner, prompt.tokens, {tokens_max, eos, {}}));
  score.found = tokenizer.decode(answer).find(prompt.value) != std::string::npos;
  return score;
}

Status run_retrieval_task(const RetrievalTask& task, EvalRun& run) {
  KVLANE_TRY(check(task, *run.model));
  KVLANE_ASSIGN(auto runners,
                make_runners(run, *std::ranges::max_element(task.lengths) + kAnswerSlack));
  const std::size_t cases = task.lengths.size() * task.depths.size() * task.trials;
  Scores scores;
  for (const int length : task.lengths) {
    for (const double depth : task.depths) {
      for (int trial = 0; trial < task.trials; ++trial) {
        const NeedlePlace place{task.form, length, depth, task.needles,
                                static_cast<std::uint32_t>(trial)};
        KVLANE_ASSIGN(const NeedlePrompt prompt, task.prompts->make(place, run.seed));
        KVLANE_ASSIGN(std::vector<RetrievalScore> done,
                      run_case(task.name,
                               task.variant + "|" + std::to_string(length) + "|" + percent(depth) +
                                   "|" + std::to_string(trial),
                               prompt, *task.tokenizer, runners, run));
        scores.push_back(std::move(done));
        if (run.progress) run.progress(task.name, scores.size(), cases);
      }
    }
  }
  add_summary(task.name, scores, run);
  add_grid(task, scores, run);
  return {};
}

Status run_retrieval_file(const RetrievalFileTask& task, EvalRun& run) {
  const std::string name = "retrieval " + task.file.filename().string();
  KVLANE_ASSIGN(const JsonLines file, read_json_lines(task.file));
  const auto& lines = file.lines;
  KVLANE_ASSIGN(auto runners, make_runners(run, task.tokens_max));
  Scores scores;
  std::size_t too_long = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto field = [&](const char* key) {
      const auto found = lines[i].find(key);
      return found == lines[i].end() ? std::string() : found->second;
    };
    NeedlePrompt prompt{.value = field("target")};
    if (field("input").empty() || prompt.value.empty()) {
      return invalid_argument(task.file.string() + ": example " + std::to_string(i + 1) +
                              " has no \"input\" and \"target\"");
    }
    const bool asks = lines[i].contains("question");
    const std::string question = asks ? field("question") : std::string(kPasskeyQuestion);
    KVLANE_ASSIGN(prompt.tokens, task.tokenizer->encode(field("input") + question));
    KVLANE_ASSIGN(prompt.answer, answer_tokens(*task.tokenizer, question, prompt.value));
    const std::size_t all = prompt.tokens.size() + prompt.answer.size() + kAnswerSlack;
    if (all > static_cast<std::size_t>(task.tokens_max)) {
      ++too_long;
      continue;
    }
    KVLANE_ASSIGN(std::vector<RetrievalScore> done,
                  run_case(name, file.digest + "|" + std::to_string(i), prompt, *task.tokenizer,
                           runners, run));
    scores.push_back(std::move(done));
    if (run.progress) run.progress(name, i + 1, lines.size());
  }
  if (too_long > 0) {
    run.report.not_measured.push_back(name + ": " + std::to_string(too_long) + " of " +
                                      std::to_string(lines.size()) + " prompts do not fit into " +
                                      std::to_string(task.tokens_max) + " tokens");
  }
  if (!scores.empty()) add_summary(name, scores, run);
  return {};
}

}  // namespace kvlane
