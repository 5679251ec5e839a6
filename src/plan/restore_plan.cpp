// All splits, each in constant time: pieces of a pipeline compose.
// SPDX-License-Identifier: Apache-2.0
#include "plan/restore_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvlane {
namespace {

// Layers in a row as two machines see them, the reader and then the computer. Begun when the reader
// is free at R and the computer at C, they are computed at max(C + compute, R + path).
struct Segment {
  double read = 0;
  double compute = 0;
  double path = 0;
  double bytes = 0;
};

Segment then(const Segment& first, const Segment& second) {
  return {first.read + second.read, first.compute + second.compute,
          std::max(first.path + second.compute, first.read + second.path),
          first.bytes + second.bytes};
}

// Of equal pieces either the first or the last is on the longest path.
Segment stored_layer(const RestoreCost& cost, int pieces) {
  const double path =
      std::max(cost.read / pieces + cost.compute, cost.read + cost.compute / pieces);
  return {cost.read, cost.compute, path, cost.bytes};
}

Segment recomputed_layers(const RestoreCosts& costs, int count) {
  double seconds = 0;
  for (int layer = 0; layer < count; ++layer) {
    const bool to_its_end = costs.whole_layers || layer + 1 < count;
    seconds += to_its_end ? costs.recompute[layer] : costs.project[layer];
  }
  return {0, seconds, seconds, 0};
}

void take_figures(const Segment& segment, RestorePlan& plan) {
  plan.seconds = segment.path;
  plan.read = segment.read;
  plan.compute = segment.compute;
  plan.bytes = segment.bytes;
}

class Search {
 public:
  explicit Search(const RestoreCosts& costs)
      : costs_(costs), layers_(static_cast<int>(costs.recompute.size())) {
    for (const RestoreForm& form : costs.forms) {
      auto& behind = behind_.emplace_back(layers_ + 1);
      for (int layer = layers_ - 1; layer >= 0; --layer) {
        behind[layer] = then(stored_layer(form.layers[layer], costs.pieces), behind[layer + 1]);
      }
    }
  }

  RestoreChoice run() {
    RestoreChoice choice;
    choice.from_tokens = plan(layers_, {});
    best_ = choice.from_tokens;
    for (int form = 0; form < forms(); ++form) {
      const bool hidden = costs_.forms[form].source == RestoreSource::kHidden;
      const int free = hidden && !costs_.whole_layers ? 1 : 0;
      const int stored = layers_ - free;
      choice.from_forms.push_back(plan(
          free, stored > 0 ? std::vector<RestoreRun>{{form, stored}} : std::vector<RestoreRun>{}));
      consider(choice.from_forms.back());
    }
    for (int recomputed = 0; recomputed < layers_; ++recomputed) {
      const Segment prefix = recomputed_layers(costs_, recomputed);
      for (int form = 0; form < forms(); ++form) try_splits(prefix, recomputed, form);
    }
    choice.best = std::move(best_);
    return choice;
  }

 private:
  int forms() const { return static_cast<int>(costs_.forms.size()); }

  RestorePlan plan(int recomputed, std::vector<RestoreRun> runs) const {
    RestorePlan made;
    made.recomputed = recomputed;
    made.runs = std::move(runs);
    estimate(costs_, made);
    return made;
  }

  // Some layers of `form` behind the recomputed ones, the rest of another or the same.
  void try_splits(Segment before, int recomputed, int form) {
    const RestoreForm& first = costs_.forms[form];
    for (int layer = recomputed; layer < layers_; ++layer) {
      before = then(before, stored_layer(first.layers[layer], costs_.pieces));
      const int count = layer + 1 - recomputed;
      if (layer + 1 == layers_) {
        consider(before, recomputed, {{form, count}});
        return;
      }
      for (int other = 0; other < forms(); ++other) {
        if (other == form || costs_.forms[other].source < first.source) continue;
        consider(then(before, behind_[other][layer + 1]), recomputed,
                 {{form, count}, {other, layers_ - layer - 1}});
      }
    }
  }

  bool is_better(double seconds, double bytes) const {
    return std::tie(seconds, bytes) < std::tie(best_.seconds, best_.bytes);
  }

  void consider(const RestorePlan& candidate) {
    if (is_better(candidate.seconds, candidate.bytes)) best_ = candidate;
  }

  void consider(const Segment& segment, int recomputed, std::initializer_list<RestoreRun> runs) {
    if (!is_better(segment.path, segment.bytes)) return;
    best_.recomputed = recomputed;
    best_.runs = runs;
    take_figures(segment, best_);
  }

  const RestoreCosts& costs_;
  const int layers_;
  std::vector<std::vector<Segment>> behind_;  // of each form, layers from this one on
  RestorePlan best_;
};

}  // namespace

void estimate(const RestoreCosts& costs, RestorePlan& plan) {
  Segment all = recomputed_layers(costs, plan.recomputed);
  int layer = plan.recomputed;
  for (const RestoreRun& run : plan.runs) {
    const RestoreForm& form = costs.forms[run.form];
    for (const int end = layer + run.layers; layer < end; ++layer) {
      all = then(all, stored_layer(form.layers[layer], costs.pieces));
    }
  }
  take_figures(all, plan);
}

RestoreChoice plan_restore(const RestoreCosts& costs) { return Search(costs).run(); }

// Where both machines are busy at once neither may be late. A plan that leaves the computer some
// time loses little by that when all goes well, and nothing when it does not.
RestorePlan prudent_plan(const RestoreCosts& costs) {
  constexpr double kSlower = 1.1;
  constexpr double kGain = 0.95;
  RestoreCosts slower = costs;
  for (double& seconds : slower.recompute) seconds *= kSlower;
  for (double& seconds : slower.project) seconds *= kSlower;
  for (RestoreForm& form : slower.forms) {
    for (RestoreCost& layer : form.layers) layer.compute *= kSlower;
  }
  RestoreChoice choice = plan_restore(slower);
  RestorePlan plan = std::move(choice.from_tokens);
  for (RestorePlan& form : choice.from_forms) {
    if (form.seconds < plan.seconds) plan = std::move(form);
  }
  if (choice.best.seconds < kGain * plan.seconds) plan = std::move(choice.best);
  estimate(costs, plan);
  return plan;
}

std::string describe(const RestorePlan& plan, std::span<const RestoreForm> forms) {
  std::string text;
  int layer = 0;
  const auto add = [&](int count, const std::string& name) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += std::to_string(layer);
    if (count > 1) text += "-" + std::to_string(layer + count - 1);
    text += " " + name;
    layer += count;
  };
  add(plan.recomputed, "tokens");
  for (const RestoreRun& run : plan.runs) add(run.layers, forms[run.form].name);
  return text;
}

}  // namespace kvlane
