// Where each layer of a sequence that comes back is taken from: a pure function of times and bytes.
//
// A layer's K and V are computed from tokens, or projected from stored hidden states, or read as
// stored slabs. One resource reads, one computes, and they overlap: while a layer is computed the
// next ones are read. Recomputed layers are the first ones, since each needs the one before it;
// slabs come last and are read while projections are still being computed (HCache, section 4).
//
// Recomputing stops at the K and V of its last layer: nobody needs what that layer puts out. So the
// input of that layer is free. One layer of tokens is the projection of their embeddings.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvlane {

enum class RestoreSource : std::uint8_t { kHidden, kSlabs };

// Of one layer in one stored form, for all tokens of the sequence. Infinite seconds: it is not
// there.
struct RestoreCost {
  double bytes = 0;    // read
  double read = 0;     // seconds
  double compute = 0;  // seconds: decoding and projecting hidden states, or what slabs still need
};

// One form in which layers are stored, or would be.
struct RestoreForm {
  std::string name;  // for people: "hidden:bf16"
  RestoreSource source = RestoreSource::kSlabs;
  std::vector<RestoreCost> layers;
};

// What the planner chooses from. All vectors have an entry a layer; there is at least one layer.
struct RestoreCosts {
  std::vector<double> recompute;  // seconds of a whole layer
  std::vector<double> project;    // seconds of its K and V alone, from its input
  std::vector<RestoreForm> forms;
  // In so many equal parts are a layer's rows read and computed: computing begins when the first is
  // there. At least 1.
  int pieces = 1;
  // Ablation, as HCache's formulas have it: the last recomputed layer costs as much as the others,
  // and no layer is free.
  bool whole_layers = false;
};

// Layers in a row that come from one form.
struct RestoreRun {
  int form;  // index in RestoreCosts::forms
  int layers;

  friend bool operator==(const RestoreRun&, const RestoreRun&) = default;
};

struct RestorePlan {
  int recomputed = 0;            // layers 0 ... recomputed - 1 come from tokens
  std::vector<RestoreRun> runs;  // those behind them, in order: hidden states before slabs
  double seconds = 0;            // until the last layer is there
  double read = 0;               // seconds that reading is busy, and computing
  double compute = 0;
  double bytes = 0;  // read

  // Which of the two would have to be faster.
  bool read_bound() const { return read > compute; }

  friend bool operator==(const RestorePlan&, const RestorePlan&) = default;
};

struct RestoreChoice {
  RestorePlan best;
  RestorePlan from_tokens;              // all layers
  std::vector<RestorePlan> from_forms;  // all layers from one form, in the order of forms; of
                                        // hidden states all but layer 0, whose input is free
};

// Seconds, bytes and the rest of a plan whose `recomputed` and `runs` cover all layers.
void estimate(const RestoreCosts& costs, RestorePlan& plan);

// The fastest of all plans of a recomputed prefix and at most two forms; of equally fast ones that
// with the fewest bytes. Relaxed to fractions of layers, no plan needs more than two kinds of
// source. Never slower than any of the others in the result. Time grows with layers and forms
// squared; 80 layers of 6 forms take a millisecond.
RestoreChoice plan_restore(const RestoreCosts& costs);

// The plan for costs that are not quite certain: computing, beside reads and other work, is taken
// to last a tenth longer than they say, and a mixture must then gain a twentieth over each source
// alone. Its seconds are those of `costs`: a tenth at most above those of one source alone.
RestorePlan prudent_plan(const RestoreCosts& costs);

// "0-3 tokens, 4-30 hidden:bf16, 31 kv:bf16".
std::string describe(const RestorePlan& plan, std::span<const RestoreForm> forms);

}  // namespace kvlane
