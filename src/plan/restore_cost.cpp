// Seconds a token are nearly linear in their number: products cost the same for each, attention
// costs each what came before it.
// SPDX-License-Identifier: Apache-2.0
#include "plan/restore_cost.h"

#include <algorithm>
#include <utility>

namespace kvlane {
namespace {

double rate_of(const TimedTokens& point) { return point.seconds / point.tokens; }

}  // namespace

double seconds_for(std::span<const TimedTokens> points, int tokens) {
  if (tokens == 0) return 0;
  const auto after =
      std::lower_bound(points.begin(), points.end(), tokens,
                       [](const TimedTokens& point, int n) { return point.tokens < n; });
  if (after == points.begin() || points.size() == 1) return tokens * rate_of(points.front());
  const bool beyond = after == points.end();
  const TimedTokens& high = beyond ? points.back() : *after;
  const TimedTokens& low = beyond ? points[points.size() - 2] : *(after - 1);
  const double more = tokens - high.tokens;
  const double span = high.tokens - low.tokens;
  const double slope = (rate_of(high) - rate_of(low)) / span;
  if (slope >= 0) return tokens * (rate_of(high) + slope * more);
  if (beyond) return tokens * rate_of(high);
  return high.seconds + (high.seconds - low.seconds) / span * more;
}

RestoreCosts restore_costs(const RestoreProfile& profile, int layers, int tokens) {
  RestoreCosts costs;
  costs.recompute.assign(layers, seconds_for(profile.prefill, tokens));
  // Projections have no attention: what the last points differ by is noise.
  const int measured = std::min(tokens, profile.project.back().tokens);
  costs.project.assign(layers, seconds_for(profile.project, measured) * tokens / measured);
  return costs;
}

RestoreForm uniform_form(const RestoreProfile& profile, int layers, std::string name,
                         RestoreSource source, double bytes, double compute) {
  const RestoreCost cost{bytes, bytes / profile.read_rate, compute};
  return {std::move(name), source, std::vector<RestoreCost>(layers, cost)};
}

double LayerWork::prefill(double tokens) const {
  return 2 * tokens * parameters + 2 * tokens * tokens * heads * head_dim;
}

double LayerWork::project(double tokens) const { return 4 * tokens * hidden * kv_heads * head_dim; }

double LayerWork::hidden_bytes(double tokens) const { return 2 * tokens * hidden; }

double LayerWork::kv_bytes(double tokens) const { return 4 * tokens * kv_heads * head_dim; }

RestoreProfile expected_profile(const LayerWork& work, double operations, double read_rate,
                                int tokens_max) {
  RestoreProfile profile;
  profile.read_rate = read_rate;
  for (int tokens = 1; tokens <= tokens_max; tokens *= 2) {
    profile.prefill.push_back({tokens, work.prefill(tokens) / operations});
    profile.project.push_back({tokens, work.project(tokens) / operations});
    if (tokens > tokens_max / 2) break;
  }
  return profile;
}

}  // namespace kvlane
