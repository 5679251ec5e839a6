// The rules of eviction and their notation.
// SPDX-License-Identifier: Apache-2.0
#include "cache/eviction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "format/shape.h"
#include "quant/format_text.h"

namespace kvlane {
namespace {

constexpr std::string_view kH2o = "h2o";
constexpr std::string_view kKeyformer = "keyformer";
constexpr int kTauMost = 100 * kShareParts;

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

}  // namespace kvlane
