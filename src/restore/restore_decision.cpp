// Plans for each number of blocks at which something ends, of which the best is taken.
// SPDX-License-Identifier: Apache-2.0
#include "restore/restore_decision.h"

#include <algorithm>
#include <limits>
#include <set>

#include "format/shape.h"

namespace kvlane {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Numbers of blocks that are tried; the largest ones.
constexpr std::size_t kCandidatesMax = 8;

// What a profile that is not there might say: reading is nearly free, slabs cost nothing else, and
// whatever computes less is better.
MachineProfile reads_rather_than_computes(int layers) {
  MachineProfile profile;
  profile.layers = layers;
  profile.prefill = {{1, 1}};
  profile.project = {{1, 0.1}};
  for (const char* name : {"hidden", "hidden:int8"}) {
    profile.forms.push_back({name, RestoreSource::kHidden, 0, 0.1});
  }
  profile.read_rate = 1e30;
  return profile;
}

double seconds_of_form(const MachineProfile& profile, const std::string& name) {
  for (const ProfiledForm& form : profile.forms) {
    if (form.name == name) return form.seconds;
  }
  return 0;
}

class Decision {
 public:
  Decision(const MachineProfile& profile, const StoredBlocks& stored, int tokens)
      : profile_(profile),
        stored_(stored),
        layers_(static_cast<int>(stored.slabs.size())),
        tokens_(tokens),
        cached_(stored.first * kBlockTokens) {}

  RestoreDecision run() {
    RestoreDecision best;
    double least = layers_ * (prefill(tokens_) - prefill(cached_));
    for (const int blocks : candidates()) {
      const int end = cached_ + blocks * kBlockTokens;
      const RestoreCosts all_costs = costs(blocks);
      const RestorePlan plan = prudent_plan(all_costs);
      const double all = plan.seconds + layers_ * (prefill(tokens_) - prefill(end));
      // A plan from tokens alone is no restore. A number that is not finite never is less.
      if (plan.recomputed == layers_ || !(all < least)) continue;
      least = all;
      best = {blocks,    plan.recomputed, sources(plan), plan.seconds, seconds_of(all_costs, plan),
              plan.bytes};
    }
    return best;
  }

 private:
  double prefill(int tokens) const { return seconds_for(profile_.prefill, tokens); }

  std::vector<int> candidates() const {
    const int most = (tokens_ - 1) / kBlockTokens - stored_.first;
    std::set<int> all;
    for (const auto* kind : {&stored_.hidden, &stored_.slabs}) {
      for (const StoredLayer& layer : *kind) all.insert(std::min(layer.blocks, most));
    }
    std::vector<int> found(all.lower_bound(1), all.end());
    if (found.size() > kCandidatesMax) found.erase(found.begin(), found.end() - kCandidatesMax);
    return found;
  }

  RestoreForm form(RestoreSource source, const std::vector<StoredLayer>& layers, int blocks) const {
    RestoreForm form{"", source, {}};
    const int tokens = blocks * kBlockTokens;
    for (const StoredLayer& layer : layers) {
      const double bytes = layer.bytes * blocks;
      RestoreCost cost{bytes, bytes / profile_.read_rate,
                       tokens * seconds_of_form(profile_, layer.form)};
      if (layer.blocks < blocks) cost = {0, kNever, kNever};
      form.layers.push_back(cost);
    }
    return form;
  }

  RestoreCosts costs(int blocks) const {
    const int end = cached_ + blocks * kBlockTokens;
    RestoreCosts costs = restore_costs({profile_.prefill, profile_.project, profile_.read_rate},
                                       layers_, blocks * kBlockTokens);
    costs.recompute.assign(layers_, prefill(end) - prefill(cached_));
    costs.pieces = (blocks * kBlockTokens + kRestorePieceTokens - 1) / kRestorePieceTokens;
    if (!stored_.from_tokens) {
      costs.recompute.assign(layers_, kNever);
      costs.whole_layers = true;  // no layer's input is free
    }
    costs.forms = {form(RestoreSource::kHidden, stored_.hidden, blocks),
                   form(RestoreSource::kSlabs, stored_.slabs, blocks)};
    return costs;
  }

  std::vector<RestoreSource> sources(const RestorePlan& plan) const {
    std::vector<RestoreSource> sources(plan.recomputed, RestoreSource::kHidden);
    for (const RestoreRun& run : plan.runs) {
      const RestoreSource source = run.form == 0 ? RestoreSource::kHidden : RestoreSource::kSlabs;
      sources.insert(sources.end(), run.layers, source);
    }
    return sources;
  }

  const MachineProfile& profile_;
  const StoredBlocks& stored_;
  const int layers_;
  const int tokens_;
  const int cached_;  // tokens
};

}  // namespace

RestoreDecision decide_restore(const MachineProfile* profile, const StoredBlocks& stored,
                               int tokens) {
  if (profile != nullptr) return Decision(*profile, stored, tokens).run();
  const MachineProfile assumed = reads_rather_than_computes(static_cast<int>(stored.slabs.size()));
  RestoreDecision decision = Decision(assumed, stored, tokens).run();
  decision.seconds = 0;
  decision.expected = {};
  return decision;
}

}  // namespace kvlane
