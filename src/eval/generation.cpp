// Prompts in passes, answers token by token.
// SPDX-License-Identifier: Apache-2.0
#include "eval/generation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "eval/divergence.h"

namespace kvlane {
namespace {

Status check_finite(const FormatRunner& runner, std::span<const float> logits, int position) {
  if (std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) return {};
  return internal_error(runner.name() + ": the logits after token " + std::to_string(position) +
                        " are not finite");
}

}  // namespace

std::int32_t most_likely(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

Status append_all(FormatRunner& runner, std::span<const std::int32_t> tokens, std::size_t first,
                  const OnLogits& on_logits) {
  for (std::size_t at = 0; at < tokens.size(); at += FormatRunner::kAppendMax) {
    const auto part =
        tokens.subspan(at, std::min<std::size_t>(FormatRunner::kAppendMax, tokens.size() - at));
    const std::size_t wanted = std::clamp(first, at, at + part.size());
    const int rows = static_cast<int>(at + part.size() - wanted);
    const int before = runner.tokens();
    KVLANE_TRY(runner.append(part, rows));
    for (int row = 0; row < rows; ++row) {
      const int index = static_cast<int>(wanted - at) + row;
      KVLANE_TRY(check_finite(runner, runner.logits(row), before + index));
      if (on_logits) KVLANE_TRY(on_logits(at + index, runner.logits(row)));
    }
  }
  return {};
}

Result<std::vector<std::int32_t>> greedy_answer(FormatRunner& runner,
                                                std::span<const std::int32_t> prompt,
                                                const GreedyLimits& limits) {
  runner.clear();
  std::int32_t next = 0;
  const OnLogits choose = [&](std::size_t, std::span<const float> logits) {
    next = most_likely(logits);
    return Status();
  };
  KVLANE_TRY(append_all(runner, prompt, prompt.size() - 1, choose));
  KVLANE_TRY(runner.end_prompt());
  std::vector<std::int32_t> answer;
  while (static_cast<int>(answer.size()) < limits.tokens_max &&
         std::ranges::find(limits.eos, next) == limits.eos.end()) {
    answer.push_back(next);
    if (limits.enough && limits.enough(next)) break;
    if (static_cast<int>(answer.size()) == limits.tokens_max) break;
    KVLANE_TRY(append_all(runner, {&answer.back(), 1}, 0, choose));
  }
  return answer;
}

Result<AnswerScore> score_answer(FormatRunner& runner, std::span<const std::int32_t> prompt,
                                 std::span<const std::int32_t> answer) {
  AnswerScore score{.tokens = static_cast<int>(answer.size())};
  if (answer.empty()) return score;
  runner.clear();
  std::size_t next = 0;
  const OnLogits add = [&](std::size_t, std::span<const float> logits) {
    const std::int32_t target = answer[next++];
    score.log_probability -= Reference(logits).loss(target);
    score.top += most_likely(logits) == target;
    return Status();
  };
  KVLANE_TRY(append_all(runner, prompt, prompt.size() - 1, add));
  KVLANE_TRY(runner.end_prompt());
  // Nothing is asked about what follows the answer's last token.
  KVLANE_TRY(append_all(runner, answer.first(answer.size() - 1), 0, add));
  return score;
}

}  // namespace kvlane
