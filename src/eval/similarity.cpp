// Answers are kept as tokens, so that the log holds everything that is compared.
// SPDX-License-Identifier: Apache-2.0
#include "eval/similarity.h"

#include <algorithm>
#include <functional>
#include <string>

#include "eval/bootstrap.h"
#include "eval/generation.h"
#include "eval/text_similarity.h"
#include "eval/wilson.h"

namespace kvlane {
namespace {

using Answer = std::vector<std::int32_t>;

// What one format's answer has in common with that of 16 bits.
struct Likeness {
  double rouge1 = 0;
  double edit = 0;
  double same_tokens = 0;
  bool identical = false;
};

Likeness compare(const Answer& reference, const Answer& answer, const Tokenizer& tokenizer) {
  const std::string a = tokenizer.decode(reference);
  const std::string b = tokenizer.decode(answer);
  const auto differ = std::ranges::mismatch(reference, answer).in1;
  return {rouge1_f(a, b), edit_similarity(a, b), static_cast<double>(differ - reference.begin()),
          reference == answer};
}

void report_likeness(const std::string& format, const std::vector<Likeness>& all, EvalRun& run) {
  const auto mean = [&](double Likeness::*member) {
    return bootstrap(
        static_cast<int>(all.size()),
        [&](std::span<const int> weights) {
          double sum = 0;
          for (std::size_t i = 0; i < all.size(); ++i) sum += weights[i] * all[i].*member;
          return sum / static_cast<double>(all.size());
        },
        run.seed);
  };
  const auto add = [&](const char* metric, const Interval& value, const char* unit) {
    run.report.measures.push_back({"similarity", format, metric, value, unit});
  };
  const auto identical = std::ranges::count(all, true, &Likeness::identical);
  add("rouge1", mean(&Likeness::rouge1), "F, 0 to 1");
  add("edit_similarity", mean(&Likeness::edit), "0 to 1");
  add("identical", wilson_interval(static_cast<int>(identical), static_cast<int>(all.size())),
      "share of answers");
  add("same_tokens", mean(&Likeness::same_tokens), "token");
}

}  // namespace

Status run_similarity_task(const SimilarityTask& task, EvalRun& run) {
  if (task.prompts < 1 || task.prompt_tokens < 1 || task.new_tokens < 1) {
    return invalid_argument("similarity needs at least one prompt, prompt token and new token");
  }
  const auto length = static_cast<std::size_t>(task.prompt_tokens);
  if (task.tokens.size() < length) {
    return invalid_argument("the text has " + std::to_string(task.tokens.size()) +
                            " tokens, too few for prompts of " + std::to_string(length));
  }
  KVLANE_ASSIGN(auto runners, make_runners(run, task.prompt_tokens + task.new_tokens));
  std::vector<std::vector<Likeness>> likeness(run.formats.size());
  for (int prompt = 0; prompt < task.prompts; ++prompt) {
    const std::size_t room = task.tokens.size() - length;
    const std::size_t start = room * prompt / std::max(1, task.prompts - 1);
    const std::string place = std::to_string(start) + "|" + std::to_string(length) + "|" +
                              std::to_string(task.new_tokens);
    const auto text = task.tokens.subspan(start, length);
    Answer reference;
    for (std::size_t format = 0; format < runners.size(); ++format) {
      const auto generate = [&]() -> Result<std::vector<double>> {
        KVLANE_ASSIGN(
            const Answer answer,
            greedy_answer(runners[format], text, {task.new_tokens, run.model->config().eos, {}}));
        return std::vector<double>(answer.begin(), answer.end());
      };
      const std::string key = "similarity|" + runners[format].name() + "|" + place;
      KVLANE_ASSIGN(const std::vector<double> kept, run.log.find_or_add(key, generate));
      const Answer answer(kept.begin(), kept.end());
      if (format == 0) reference = answer;
      likeness[format].push_back(compare(reference, answer, *task.tokenizer));
    }
    if (run.progress) run.progress("similarity", prompt + 1, task.prompts);
  }
  for (std::size_t format = 0; format < runners.size(); ++format) {
    report_likeness(runners[format].name(), likeness[format], run);
  }
  return {};
}

}  // namespace kvlane
