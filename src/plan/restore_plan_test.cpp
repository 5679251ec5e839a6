// Plans of restores against all plans there are, piece by piece; and what makes plans faster.
// SPDX-License-Identifier: Apache-2.0
#include "plan/restore_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace kvlane {
namespace {

using ::testing::ElementsAre;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kFromTokens = -1;  // as a layer's form
using Layers = std::vector<int>;

// When the last piece of the last layer is computed: a clock for the reader, one for the computer.
double simulated_seconds(const RestoreCosts& costs, const Layers& layers) {
  double reader = 0;
  double computer = 0;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer] == kFromTokens) {
      const bool last = layer + 1 == layers.size() || layers[layer + 1] != kFromTokens;
      computer += last && !costs.whole_layers ? costs.project[layer] : costs.recompute[layer];
      continue;
    }
    const RestoreCost& cost = costs.forms[layers[layer]].layers[layer];
    for (int piece = 0; piece < costs.pieces; ++piece) {
      reader += cost.read / costs.pieces;
      computer = std::max(computer, reader) + cost.compute / costs.pieces;
    }
  }
  return std::max(reader, computer);
}

// Calls visit(layers) with all sources of all layers that are in order.
template <class Visit>
void for_all_plans(const RestoreCosts& costs, Layers& layers, const Visit& visit) {
  if (layers.size() == costs.recompute.size()) return visit(layers);
  const int last = layers.empty() ? kFromTokens : layers.back();
  for (int form = kFromTokens; form < static_cast<int>(costs.forms.size()); ++form) {
    if (form == kFromTokens && last != kFromTokens) continue;
    if (last != kFromTokens && costs.forms[form].source < costs.forms[last].source) continue;
    layers.push_back(form);
    for_all_plans(costs, layers, visit);
    layers.pop_back();
  }
}

// Changes of form behind the recomputed layers, and no return to an earlier one.
bool has_two_forms_at_most(const Layers& layers) {
  std::vector<int> runs;
  for (const int form : layers) {
    if (form != kFromTokens && (runs.empty() || runs.back() != form)) runs.push_back(form);
  }
  return runs.size() <= 2;
}

double fastest(const RestoreCosts& costs) {
  double best = kNever;
  Layers layers;
  for_all_plans(costs, layers, [&](const Layers& plan) {
    if (has_two_forms_at_most(plan)) best = std::min(best, simulated_seconds(costs, plan));
  });
  return best;
}

Layers layers_of(const RestorePlan& plan) {
  Layers layers(plan.recomputed, kFromTokens);
  for (const RestoreRun& run : plan.runs) layers.insert(layers.end(), run.layers, run.form);
  return layers;
}

RestoreCosts random_costs(std::mt19937& random, int layers, int hidden, int slabs) {
  const auto draw = [&](double scale) {
    // Now and then nothing at all.
    return random() % 8 == 0 ? 0 : scale * static_cast<double>(1 + random() % 1000) / 1000;
  };
  RestoreCosts costs;
  costs.pieces = 1 + static_cast<int>(random() % 5);
  costs.whole_layers = random() % 4 == 0;
  for (int form = 0; form < hidden + slabs; ++form) {
    costs.forms.push_back({"f" + std::to_string(form),
                           form < hidden ? RestoreSource::kHidden : RestoreSource::kSlabs,
                           {}});
  }
  for (int layer = 0; layer < layers; ++layer) {
    costs.project.push_back(draw(1));
    costs.recompute.push_back(costs.project.back() + draw(5));
    for (RestoreForm& form : costs.forms) {
      form.layers.push_back({1 + draw(9), random() % 20 == 0 ? kNever : draw(2), draw(2)});
    }
  }
  return costs;
}

// All layers alike: seconds of one.
RestoreCosts uniform_costs(int layers, double recompute, double project, RestoreCost hidden,
                           RestoreCost slabs) {
  const auto all = [&](const auto& one) { return std::vector(layers, one); };
  RestoreCosts costs;
  costs.recompute = all(recompute);
  costs.project = all(project);
  costs.forms = {{"hidden", RestoreSource::kHidden, all(hidden)},
                 {"slabs", RestoreSource::kSlabs, all(slabs)}};
  costs.pieces = 16;
  return costs;
}

TEST(RestorePlan, EqualsTheFastestOfAllPlans) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    const bool several = round % 2 == 0;
    const RestoreCosts costs =
        random_costs(random, 1 + static_cast<int>(random() % (several ? 4 : 7)), several ? 2 : 1,
                     several ? 2 : 1);
    const RestoreChoice choice = plan_restore(costs);
    const double best = fastest(costs);
    EXPECT_NEAR(choice.best.seconds, best, 1e-12 * best);
    EXPECT_NEAR(simulated_seconds(costs, layers_of(choice.best)), best, 1e-12 * best);
  }
}

TEST(RestorePlan, FiguresAreThoseOfItsLayers) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const RestoreCosts costs = random_costs(random, 9, 2, 3);
    const RestoreChoice choice = plan_restore(costs);
    RestorePlan again = choice.best;
    estimate(costs, again);
    EXPECT_NEAR(again.seconds, choice.best.seconds, 1e-12 * again.seconds);
    const Layers layers = layers_of(choice.best);
    ASSERT_EQ(layers.size(), 9U);
    double read = 0;
    double bytes = 0;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      if (layers[layer] == kFromTokens) continue;
      read += costs.forms[layers[layer]].layers[layer].read;
      bytes += costs.forms[layers[layer]].layers[layer].bytes;
    }
    EXPECT_NEAR(choice.best.read, read, 1e-9);
    EXPECT_NEAR(choice.best.bytes, bytes, 1e-9);
    EXPECT_GE(choice.best.seconds * (1 + 1e-12), std::max(choice.best.read, choice.best.compute));
  }
}

TEST(RestorePlan, IsNeverSlowerThanAPureOne) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const RestoreCosts costs = random_costs(random, 1 + static_cast<int>(random() % 12), 2, 2);
    const RestoreChoice choice = plan_restore(costs);
    EXPECT_LE(choice.best.seconds, choice.from_tokens.seconds);
    ASSERT_EQ(choice.from_forms.size(), 4U);
    for (const RestorePlan& plan : choice.from_forms) {
      EXPECT_LE(choice.best.seconds, plan.seconds);
    }
  }
}

TEST(RestorePlan, NothingThatGetsFasterMakesItSlower) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    RestoreCosts costs = random_costs(random, 8, 1, 2);
    const double before = plan_restore(costs).best.seconds;
    const auto layer = random() % 8;
    RestoreCosts faster = costs;
    const auto kind = random() % 5;
    RestoreCost& stored = faster.forms[random() % 3].layers[layer];
    if (kind == 0) stored.read /= 2;
    if (kind == 1) stored.compute /= 2;
    if (kind == 2) faster.recompute[layer] /= 2;
    if (kind == 3) faster.project[layer] /= 2;
    if (kind == 4) faster.pieces *= 2;
    EXPECT_LE(plan_restore(faster).best.seconds, before * (1 + 1e-12)) << kind;
    RestoreCosts fewer = costs;
    fewer.forms.erase(fewer.forms.begin() + random() % 3);
    EXPECT_GE(plan_restore(fewer).best.seconds * (1 + 1e-12), before);
  }
}

// By hand: 4 layers, reading a layer's slabs takes 3 s, computing one takes 2 s, the last 1 s.
TEST(RestorePlan, StopsAtTheKAndVOfTheLastRecomputedLayer) {
  RestoreCosts costs = uniform_costs(4, 2, 1, {1, kNever, 0}, {2, 3, 0});
  const RestoreChoice choice = plan_restore(costs);
  EXPECT_EQ(choice.from_tokens.seconds, 7);
  EXPECT_EQ(choice.from_forms[1].seconds, 12);
  EXPECT_EQ(choice.best.recomputed, 3);
  EXPECT_THAT(choice.best.runs, ElementsAre(RestoreRun{1, 1}));
  EXPECT_EQ(choice.best.seconds, 5);
  EXPECT_EQ(choice.best.read, 3);
  EXPECT_FALSE(choice.best.read_bound());
  EXPECT_EQ(choice.best.bytes, 2);
  costs.whole_layers = true;
  EXPECT_EQ(plan_restore(costs).best.seconds, 6);
}

TEST(RestorePlan, LayerZeroIsFreeOfReading) {
  const RestoreCosts costs = uniform_costs(4, 100, 0.5, {1, 1, 0.5}, {2, 10, 0});
  const RestoreChoice choice = plan_restore(costs);
  EXPECT_EQ(choice.best.recomputed, 1);
  EXPECT_THAT(choice.best.runs, ElementsAre(RestoreRun{0, 3}));
  EXPECT_EQ(choice.best.bytes, 3);
  EXPECT_TRUE(choice.best.read_bound());
  EXPECT_EQ(choice.best, choice.from_forms[0]);
  // The last of 16 pieces is computed when it is there.
  EXPECT_DOUBLE_EQ(choice.best.seconds, 3 + 0.5 / 16);
}

// Slabs that need no computing fill the reader while projections drain.
TEST(RestorePlan, SlabsComeBehindHiddenStates) {
  const RestoreCosts costs = uniform_costs(30, 100, 2, {1, 1, 2}, {2, 2, 0});
  const RestoreChoice choice = plan_restore(costs);
  ASSERT_EQ(choice.best.runs.size(), 2U);
  EXPECT_EQ(choice.best.runs[0].form, 0);
  EXPECT_EQ(choice.best.runs[1].form, 1);
  EXPECT_EQ(describe(choice.best, costs.forms), "0 tokens, 1-19 hidden, 20-29 slabs");
}

// As with the pictures of one codec and none: less to read, but work to open them.
TEST(RestorePlan, MixesTwoFormsOfSlabs) {
  RestoreCosts costs = uniform_costs(20, 100, 100, {1, kNever, 0}, {2, 3, 0});
  costs.forms[0] = {"coded", RestoreSource::kSlabs, std::vector<RestoreCost>(20, {1, 1, 3})};
  const RestoreChoice choice = plan_restore(costs);
  EXPECT_EQ(choice.best.recomputed, 0);
  ASSERT_EQ(choice.best.runs.size(), 2U);
  EXPECT_LT(choice.best.seconds, 0.75 * choice.from_forms[0].seconds);
  EXPECT_LT(choice.best.seconds, 0.75 * choice.from_forms[1].seconds);
}

TEST(RestorePlan, TakesFewerBytesOfEquallyFastPlans) {
  const RestoreCosts costs = uniform_costs(3, 1, 1, {1, 0, 1}, {5, 0, 1});
  EXPECT_EQ(plan_restore(costs).best.bytes, 0);
}

TEST(RestorePlan, WhatIsNotThereIsNotTaken) {
  RestoreCosts costs = uniform_costs(5, 10, 1, {1, 1, 1}, {1, 1, 0});
  for (int layer = 0; layer < 3; ++layer) costs.forms[1].layers[layer].read = kNever;
  const RestoreChoice choice = plan_restore(costs);
  EXPECT_EQ(choice.from_forms[1].seconds, kNever);
  EXPECT_EQ(describe(choice.best, costs.forms), "0 tokens, 1-2 hidden, 3-4 slabs");
  for (RestoreForm& form : costs.forms) {
    for (RestoreCost& cost : form.layers) cost.read = kNever;
  }
  EXPECT_EQ(describe(plan_restore(costs).best, costs.forms), "0-4 tokens");
}

TEST(RestorePlan, OneLayerIsItsEmbedding) {
  const RestoreChoice choice = plan_restore(uniform_costs(1, 9, 1, {1, 2, 1}, {2, 3, 0}));
  EXPECT_EQ(choice.best.recomputed, 1);
  EXPECT_TRUE(choice.best.runs.empty());
  EXPECT_EQ(choice.best.seconds, 1);
  RestoreCosts none = uniform_costs(1, 9, 1, {}, {});
  none.forms.clear();
  EXPECT_EQ(plan_restore(none).best.recomputed, 1);
}

TEST(PrudentPlan, LosesLittleToTheBestOne) {
  std::mt19937 random(5);
  int same = 0;
  for (int round = 0; round < 500; ++round) {
    const RestoreCosts costs = random_costs(random, 9, 2, 3);
    const RestoreChoice choice = plan_restore(costs);
    const RestorePlan plan = prudent_plan(costs);
    RestorePlan again = plan;
    estimate(costs, again);
    EXPECT_EQ(again, plan);
    EXPECT_GE(plan.seconds, choice.best.seconds * (1 - 1e-12));
    EXPECT_LE(plan.seconds, choice.best.seconds * 1.1 / 0.95 * (1 + 1e-12));
    same += plan == choice.best ? 1 : 0;
  }
  EXPECT_GT(same, 100);
  EXPECT_LT(same, 490);
}

TEST(PrudentPlan, IsAMixtureOnlyWhereThatGains) {
  // Slabs take 32 s, which projecting two layers of hidden states makes 30.5, and more less.
  for (const auto& [project, mixes] : {std::pair{15.0, false}, {1.0, true}}) {
    const RestoreCosts costs = uniform_costs(32, 100, 40, {1, 0.25, project}, {2, 1, 0});
    EXPECT_LT(plan_restore(costs).best.seconds, plan_restore(costs).from_forms[1].seconds);
    EXPECT_EQ(prudent_plan(costs).runs.size() == 1, !mixes);
  }
}

TEST(PrudentPlan, LeavesTheComputerSomeTime) {
  // A layer of hidden states takes as long to read as to project: all of them are a balance.
  const RestoreCosts costs = uniform_costs(32, 100, 1, {1, 1, 1}, {1, 1.5, 0});
  EXPECT_NEAR(plan_restore(costs).best.compute, 32, 1);
  const RestorePlan plan = prudent_plan(costs);
  EXPECT_NEAR(plan.compute, 29.5, 1);
  EXPECT_LT(plan.seconds, 33.5);
}

}  // namespace
}  // namespace kvlane
