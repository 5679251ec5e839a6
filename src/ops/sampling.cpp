// Greedy choice, and draws from the truncated distribution.
// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

std::int32_t argmax(std::span<const float> logits) {
  std::int32_t best = 0;
  float best_value = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best_value) {  // false for NaN
      best_value = logits[i];
      best = static_cast<std::int32_t>(i);
    }
  }
  return best;
}

struct Candidate {
  float logit;
  std::int32_t id;
};

// More likely first; ties by id, so that the order does not depend on the sort.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The candidates that can be drawn, best first as far as anybody looks.
std::vector<Candidate> rank_candidates(std::span<const float> logits, int top_k) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({logits[i], static_cast<std::int32_t>(i)});
  }
  if (top_k > 0 && static_cast<std::size_t>(top_k) < candidates.size()) {
    std::partial_sort(candidates.begin(), candidates.begin() + top_k, candidates.end(), before);
    candidates.resize(top_k);
  } else {
    std::sort(candidates.begin(), candidates.end(), before);
  }
  return candidates;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                          const SamplingKey& key, int position) {
  if (params.temperature <= 0) return argmax(logits);
  const std::vector<Candidate> candidates = rank_candidates(logits, params.top_k);
  // Logits that are all NaN or infinite have no distribution to draw from.
  if (candidates.empty() || std::isinf(candidates[0].logit)) return argmax(logits);

  std::vector<double> weights(candidates.size());
  double total = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(candidates[i].logit) - candidates[0].logit) /
                          params.temperature);
    total += weights[i];
  }
  std::size_t kept = candidates.size();
  if (params.top_p < 1) {
    double mass = 0;
    for (kept = 0; kept < candidates.size();) {
      mass += weights[kept++];
      if (mass >= params.top_p * total) break;
    }
    total = mass;
  }

  const PhiloxCounter words =
      philox4x32(key.seed, {static_cast<std::uint32_t>(position), key.choice, 0, 0});
  double rest = uniform_unit(words[0], words[1]) * total;
  for (std::size_t i = 0; i < kept; ++i) {
    rest -= weights[i];
    if (rest < 0) return candidates[i].id;
  }
  return candidates[kept - 1].id;  // rounding: the sum was a hair above its parts
}

}  // namespace kvlane
