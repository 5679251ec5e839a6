// What is done to logits before a draw, and what they say about the tokens' probabilities.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/sampling.h"

namespace kvlane {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Once for each token of `prompt` and `answer`, however often it occurs.
void penalise_repetition(std::span<float> logits, float penalty,
                         std::span<const std::int32_t> prompt,
                         std::span<const std::int32_t> answer) {
  std::vector<bool> seen(logits.size());
  for (const std::span<const std::int32_t> tokens : {prompt, answer}) {
    for (const std::int32_t token : tokens) {
      if (seen[token]) continue;
      seen[token] = true;
      logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
    }
  }
}

void penalise_occurrence(std::span<float> logits, const SamplingParams& params,
                         std::span<const std::int32_t> answer) {
  std::vector<std::int32_t> sorted(answer.begin(), answer.end());
  std::sort(sorted.begin(), sorted.end());
  for (auto token = sorted.begin(); token != sorted.end();) {
    const auto next = std::upper_bound(token, sorted.end(), *token);
    logits[*token] -=
        static_cast<float>(next - token) * params.frequency_penalty + params.presence_penalty;
    token = next;
  }
}

// Best first, ties by lower id; without NaN.
std::vector<TokenLogprob> most_likely(std::span<const float> logits, std::size_t count) {
  std::vector<TokenLogprob> top;
  if (count == 0) return top;
  top.reserve(count + 1);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (std::isnan(logit) || (top.size() == count && logit <= top.back().logprob)) continue;
    const auto worse = [](const TokenLogprob& a, const TokenLogprob& b) {
      return a.logprob > b.logprob;
    };
    const TokenLogprob entry{static_cast<std::int32_t>(i), logit};
    top.insert(std::upper_bound(top.begin(), top.end(), entry, worse), entry);
    if (top.size() > count) top.pop_back();
  }
  return top;
}

// The logarithm of the sum of exp(logit - best), NaN left out.
double log_sum_exp(std::span<const float> logits, float best) {
  double sum = 0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit) - best);
  }
  return std::log(sum);
}

}  // namespace

bool takes_best_logit(const SamplingParams& params) {
  return params.temperature == 0 && params.logit_bias.empty() && params.repetition_penalty == 1 &&
         params.frequency_penalty == 0 && params.presence_penalty == 0;
}

void adjust_logits(std::span<float> logits, const SamplingParams& params,
                   std::span<const std::int32_t> prompt, std::span<const std::int32_t> answer,
                   std::span<const std::int32_t> banned) {
  for (const LogitBias& bias : params.logit_bias) logits[bias.token] += bias.bias;
  if (params.repetition_penalty != 1) {
    penalise_repetition(logits, params.repetition_penalty, prompt, answer);
  }
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    penalise_occurrence(logits, params, answer);
  }
  for (const std::int32_t token : banned) logits[token] = -kInfinity;
}

TokenLogprobs token_logprobs(std::span<const float> logits, std::int32_t token, int top) {
  TokenLogprobs result;
  // At least one: the best is needed whatever is asked for.
  result.top = most_likely(logits, std::max(top, 1));
  const float best = result.top.empty() ? -kInfinity : result.top[0].logprob;
  const double normaliser = std::isfinite(best) ? log_sum_exp(logits, best) : 0;
  const auto logprob = [&](float logit) {
    if (std::isnan(logit)) return -kInfinity;
    if (!std::isfinite(best)) return logit == kInfinity ? 0 : -kInfinity;
    return static_cast<float>((static_cast<double>(logit) - best) - normaliser);
  };
  result.logprob = logprob(logits[token]);
  for (TokenLogprob& entry : result.top) entry.logprob = logprob(entry.logprob);
  result.top.resize(std::min<std::size_t>(result.top.size(), top));
  return result;
}

}  // namespace kvlane
