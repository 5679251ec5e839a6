// The rules of eviction and their notation.
// SPDX-License-Identifier: Apache-2.0
#include "cache/eviction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "format/shape.h"
#include "quant/format_text.h"

namespace kvlane {
namespace {

constexpr std::string_view kH2o = "h2o";
constexpr std::string_view kKeyformer = "keyformer";
constexpr int kTauMost = 100 * kShareParts;

// Keeps this use of random numbers apart from others with the same seed.
constexpr std::uint64_t kNoiseKey = std::uint64_t{0x67756D62} << 32;

float comparable(float score) {
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

int part_of(int whole, int share) {
  return static_cast<int>(std::int64_t{whole} * share / kShareParts);
}

}  // namespace

std::string EvictionRule::name() const {
  const bool keyformer = score == Score::kKeyformer;
  std::string text(keyformer ? kKeyformer : kH2o);
  text += ":keep=" + share_text(keep) + ",recent=" + share_text(recent);
  if (!keyformer) return text;
  return text + ",tau=" + share_text(tau) + ",tau_delta=" + share_text(tau_delta) +
         ",seed=" + std::to_string(seed);
}

float EvictionRule::temperature(int step) const {
  return static_cast<float>((tau + static_cast<double>(step) * tau_delta) / kShareParts);
}

bool names_eviction_rule(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  return name == kH2o || name == kKeyformer;
}

Result<EvictionRule> make_eviction_rule(std::string_view text) {
  KVLANE_ASSIGN(FormatText parsed, FormatText::parse(text, "eviction"));
  if (!names_eviction_rule(parsed.name())) {
    return invalid_argument("there is no eviction '" + parsed.name() + "'; known are " +
                            std::string(kH2o) + ", " + std::string(kKeyformer));
  }
  EvictionRule rule;
  const bool keyformer = parsed.name() == kKeyformer;
  if (keyformer) rule = {EvictionRule::Score::kKeyformer, 6000, 3000};
  KVLANE_ASSIGN(rule.keep, parsed.share("keep", rule.keep));
  KVLANE_ASSIGN(rule.recent, parsed.decimal("recent", 0, kShareParts, rule.recent));
  if (keyformer) {
    KVLANE_ASSIGN(rule.tau, parsed.decimal("tau", 1, kTauMost, rule.tau));
    KVLANE_ASSIGN(rule.tau_delta, parsed.decimal("tau_delta", 0, kTauMost, rule.tau_delta));
    KVLANE_ASSIGN(const int seed, parsed.within("seed", 0, std::numeric_limits<int>::max(), 0));
    rule.seed = static_cast<std::uint32_t>(seed);
  }
  KVLANE_TRY(parsed.finish());
  return rule;
}

EvictionBudget eviction_budget(const EvictionRule& rule, int prompt_tokens) {
  const int tokens = std::max(1, part_of(prompt_tokens, rule.keep));
  const int recent = part_of(tokens, rule.recent);
  return {tokens - recent, recent};
}

int eviction_blocks(const EvictionRule& rule, int prompt_tokens) {
  return blocks_for(eviction_budget(rule, prompt_tokens).tokens() + 1);
}

std::vector<int> kept_tokens(std::span<const float> scores, EvictionBudget budget) {
  const int count = static_cast<int>(scores.size());
  std::vector<int> kept(count);
  std::iota(kept.begin(), kept.end(), 0);
  if (count <= budget.tokens()) return kept;
  const auto others = kept.begin() + (count - budget.recent);
  std::nth_element(kept.begin(), kept.begin() + budget.key, others, [&](int a, int b) {
    const float of_a = comparable(scores[a]);
    const float of_b = comparable(scores[b]);
    return of_a > of_b || (of_a == of_b && a < b);
  });
  kept.erase(kept.begin() + budget.key, others);
  std::sort(kept.begin(), kept.end());
  return kept;
}

int discarded_token(std::span<const float> scores, std::span<const std::int32_t> positions,
                    EvictionBudget budget, int newest) {
  int found = -1;
  if (static_cast<int>(scores.size()) <= budget.tokens()) return found;
  for (int i = 0; i < static_cast<int>(scores.size()); ++i) {
    if (positions[i] > newest - budget.recent) continue;
    if (found >= 0) {
      const float score = comparable(scores[i]);
      const float lowest = comparable(scores[found]);
      if (score > lowest || (score == lowest && positions[i] < positions[found])) continue;
    }
    found = i;
  }
  return found;
}

std::array<float, 4> gumbel_noise(std::uint32_t seed, int layer, int query_head, int query,
                                  int quad) {
  const PhiloxCounter words =
      philox4x32(kNoiseKey | seed,
                 {static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(query),
                  static_cast<std::uint32_t>(query_head), static_cast<std::uint32_t>(layer)});
  std::array<float, 4> noise;
  for (int i = 0; i < 4; ++i) {
    // In the middle of one of 2^23 parts of (0, 1), so that neither end can be met.
    const float uniform = (static_cast<float>(words[i] >> 9) + 0.5F) * 0x1p-23F;
    noise[i] = -std::log(-std::log(uniform));
  }
  return noise;
}

}  // namespace kvlane
