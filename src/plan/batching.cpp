// Learning the pace, keeping the promise, sharing the step.
// SPDX-License-Identifier: Apache-2.0
#include "plan/batching.h"

#include <algorithm>

namespace kvlane {
namespace {

// Weight of the last step: an outlier on a busy machine fades within a few steps.
constexpr double kNews = 0.2;

void blend(double& value, double sample) {
  value = value == 0 ? sample : (1 - kNews) * value + kNews * sample;
}

}  // namespace

StepPace learn(StepPace pace, const StepSample& sample) {
  const bool mixed = sample.answers > 0 && sample.prompt_tokens > 0;
  pace.mixed_steps = mixed ? pace.mixed_steps + 1 : 0;
  if (sample.prompt_tokens == 0) {
    if (sample.answers > 0) blend(pace.answer_seconds, sample.seconds);
    return pace;
  }
  // Without a plain step to compare with, all of a mixed one would count as the prompt's.
  if (sample.answers > 0 && pace.answer_seconds == 0) return pace;
  const double rest = sample.seconds - (sample.answers > 0 ? pace.answer_seconds : 0);
  blend(pace.prompt_token_seconds, std::max(0.0, rest) / sample.prompt_tokens);
  return pace;
}

int prompt_budget(const StepPace& pace, int answers, double slowdown_max, int tokens_max) {
  if (answers == 0) return tokens_max;
  if (pace.mixed_steps >= kMixedStepsMax || pace.answer_seconds == 0) return 0;
  const int least = std::min(kPromptTokensMin, tokens_max);
  if (pace.prompt_token_seconds == 0) return least;
  const double tokens = (slowdown_max - 1) * pace.answer_seconds / pace.prompt_token_seconds;
  if (tokens >= tokens_max) return tokens_max;
  return std::max(least, static_cast<int>(tokens));
}

void share_step(std::span<const int> missing, int budget, unsigned turn, std::span<int> tokens) {
  const int count = static_cast<int>(missing.size());
  int first = -1;
  int others = 0;
  for (int i = 0; i < count; ++i) {
    tokens[i] = missing[i] == 1 ? 1 : 0;
    if (missing[i] == 1) continue;
    if (first < 0) {
      first = i;
    } else {
      ++others;
    }
  }
  if (first < 0) return;
  int left = budget;
  const auto give = [&](int i, int share) {
    const int taken = std::min({share, missing[i] - tokens[i], left});
    tokens[i] += taken;
    left -= taken;
  };
  give(first, others == 0 ? budget : (budget + 1) / 2);
  const int share = others == 0 ? 0 : left / others;
  for (int i = first + 1; share > 0 && i < count; ++i) {
    if (missing[i] > 1) give(i, share);
  }
  // What is left, by rank; where not even one token came to each, to another one first each time.
  const int skip = share == 0 && others > 0 ? static_cast<int>(turn % unsigned(others)) : 0;
  int seen = 0;
  for (int i = first + 1; i < count && left > 0; ++i) {
    if (missing[i] > 1 && seen++ >= skip) give(i, left);
  }
  for (int i = first; i < count && left > 0; ++i) {
    if (missing[i] > 1) give(i, left);
  }
}

}  // namespace kvlane
