// How long a step of a model takes on GPUs: a roofline for each of its parts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "plan/restore_cost.h"
#include "sim/gpu.h"

namespace kvlane {

struct SimModel {
  LayerWork layer{};
  int layers = 0;
  double output_parameters = 0;     // of the product behind the last layer
  double embedding_parameters = 0;  // that lie in memory besides

  double weight_bytes() const {
    return 2 * (layers * layer.parameters + output_parameters + embedding_parameters);
  }
  // K and V of a token of a layer, all heads.
  double kv_values() const { return 2.0 * layer.kv_heads * layer.head_dim; }
};

// What a KV format, and a codec on the way, cost. Bytes are those of a token of a layer, all heads.
struct KvCosts {
  std::string name;
  double resident_bytes = 0;
  double wire_bytes = 0;
  // Of the memory's rate that decode attention on 16 bits gets, the share that it gets on this.
  double read_share = 1;
  // How much faster products of prefill attention are than on 16 bits, where there are units for 8.
  double prefill_speed = 1;
  // Operations on vector units for each K and V value that a step reads: to make 16 bits of codes.
  double open_operations = 0;
  // They are written to memory and read again, since no kernel attends to codes itself.
  bool opens_to_memory = false;
  // Of vector units for each pair of a query and a key of each query head, when attention corrects
  // products of codes.
  double approximate_operations = 0;
  // Shares of the memory's rate; 0: it is not done. Of what sealing reads and writes; and of 16-bit
  // KV that is encoded and decoded.
  double seal_share = 0;
  double encode_share = 0;
  double decode_share = 0;
};

struct Parallelism {
  int tensor = 1;    // GPUs that share each layer
  int pipeline = 1;  // groups of these that have some of the layers each
  int gpus() const { return tensor * pipeline; }
};

// Seconds beside those that follow from rates.
struct StepOverheads {
  double step = 300e-6;  // scheduling, sampling, answering
  double layer = 10e-6;  // starting its kernels, as graphs do; without them 300e-6 to 450e-6
};

// Tokens of one sequence in a step, and how many are in its cache before.
struct StepPart {
  int tokens = 0;
  int context = 0;
  bool answers = true;  // the token behind them is wanted
};

// Seconds of a step, from the first layer of the first stage to the last token.
struct StepTime {
  double products = 0;
  double attention = 0;
  double open = 0;  // codes to 16 bits, or what corrects products of codes
  double seal = 0;
  double exchange = 0;  // between GPUs
  double overhead = 0;
  double total() const { return products + attention + open + seal + exchange + overhead; }
};

// Pure; thread-safe.
class StepCost {
 public:
  StepCost(const Gpu& gpu, const SimModel& model, const Parallelism& parallel, const KvCosts& kv,
           const StepOverheads& overheads)
      : gpu_(gpu), model_(model), parallel_(parallel), kv_(kv), overheads_(overheads) {}

  // All of its parts together. No parts: 0.
  StepTime of(std::span<const StepPart> parts) const;

  // Seconds to encode or decode `values` values of K and V, by the GPUs that share layers.
  double encode(double values) const { return coding(values, kv_.encode_share); }
  double decode(double values) const { return coding(values, kv_.decode_share); }

  // Tokens whose KV fits beside the weights, with `share` of memory for both; at most 0 where
  // weights do not fit. The rest is for activations.
  double tokens_in_memory(double share) const;

 private:
  double coding(double values, double share) const;
  double products(int tokens, int sampled) const;
  double exchange(int tokens) const;
  // KV heads are not cut: a GPU has at least one.
  double kv_gpus() const;

  Gpu gpu_;
  SimModel model_;
  Parallelism parallel_;
  KvCosts kv_;
  StepOverheads overheads_;
};

}  // namespace kvlane
