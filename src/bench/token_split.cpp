// The two parts of a sequence are timed as one: a sequence of twice as many layers, which a plan of
// layers knows to time.
// SPDX-License-Identifier: Apache-2.0
#include "bench/token_split.h"

#include <algorithm>
#include <vector>

namespace kvlane {
namespace {

const RestoreForm& form_of(const RestoreCosts& costs, const char* name) {
  return *std::find_if(costs.forms.begin(), costs.forms.end(),
                       [&](const RestoreForm& form) { return form.name == name; });
}

RestoreCosts costs_of(const MachineProfile& profile, int tokens) {
  return restore_costs(profile, tokens, profile.read_rate);
}

// Computing the first part, before anything of the second can be.
double seconds_recomputed(const MachineProfile& profile, int tokens) {
  if (tokens == 0) return 0;
  const RestoreCosts costs = costs_of(profile, tokens);
  return (profile.layers - 1) * costs.recompute[0] + costs.project[0];
}

// Hidden states of all layers but the first, whose input is the tokens' embeddings.
RestorePlan hidden_plan(int layers) {
  return {
      .recomputed = 1,
      .runs = layers > 1 ? std::vector<RestoreRun>{{0, layers - 1}} : std::vector<RestoreRun>{}};
}

double tokens_then_hidden(const MachineProfile& profile, int all, int recomputed) {
  const double before = seconds_recomputed(profile, recomputed);
  if (recomputed == all) return before;
  RestoreCosts costs = costs_of(profile, all - recomputed);
  costs.forms = {form_of(costs, "hidden")};
  costs.project[0] += before;
  RestorePlan plan = hidden_plan(profile.layers);
  estimate(costs, plan);
  return plan.seconds;
}

double hidden_then_slabs(const MachineProfile& profile, int all, int hidden) {
  const int layers = profile.layers;
  RestoreCosts costs{.pieces = (all + kRestorePieceTokens - 1) / kRestorePieceTokens};
  RestorePlan plan;
  costs.forms.resize(2);
  if (hidden > 0) {
    const RestoreCosts first = costs_of(profile, hidden);
    costs.recompute = first.recompute;
    costs.project = first.project;
    costs.forms[0] = form_of(first, "hidden");
    plan = hidden_plan(layers);
  }
  costs.forms[1].layers.resize(costs.forms[0].layers.size());
  if (hidden < all) {
    const std::vector<RestoreCost> slabs = form_of(costs_of(profile, all - hidden), "kv").layers;
    costs.forms[1].layers.insert(costs.forms[1].layers.end(), slabs.begin(), slabs.end());
    plan.runs.push_back({1, layers});
  }
  estimate(costs, plan);
  return plan.seconds;
}

}  // namespace

TokenSplit best_token_split(const MachineProfile& profile, int tokens, int step) {
  TokenSplit best{true, 0, tokens_then_hidden(profile, tokens, 0)};
  for (int part = 0; part <= tokens; part += step) {
    const double computing = tokens_then_hidden(profile, tokens, part);
    if (computing < best.seconds) best = {true, part, computing};
    const double reading = hidden_then_slabs(profile, tokens, part);
    if (reading < best.seconds) best = {false, part, reading};
  }
  return best;
}

}  // namespace kvlane
