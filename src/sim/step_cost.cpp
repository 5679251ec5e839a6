// The rooflines.
// SPDX-License-Identifier: Apache-2.0
#include "sim/step_cost.h"

#include <algorithm>

namespace kvlane {
namespace {

// A token's row of the model's width is read or written so often in a layer, beside products:
// norms, rotation, residual sums, and what activations of the feed-forward network take, which is
// wider.
constexpr double kRowPasses = 16;
// Exchanges of a layer: behind attention and behind the feed-forward network.
constexpr double kExchanges = 2;

}  // namespace

StepTime StepCost::of(std::span<const StepPart> parts) const {
  StepTime time;
  if (parts.empty()) return time;
  const LayerWork& layer = model_.layer;
  const double gpus = kv_gpus();
  const double memory = gpu_.memory_share * gpu_.memory_rate;
  const double speed = gpu_.matrix_int8_rate > gpu_.matrix_rate ? kv_.prefill_speed : 1;
  // Seconds of a layer for a pair of a query and a key, all heads; and to read a token's K and V.
  const double pair = 4.0 * layer.heads * layer.head_dim /
                      (parallel_.tensor * gpu_.attention_share * gpu_.matrix_rate * speed);
  const double read = kv_.resident_bytes / (gpus * memory * kv_.read_share);
  int tokens = 0;
  int answers = 0;
  double context = 0;
  double coded_pairs = 0;  // of queries, and keys of their own part or before
  for (const StepPart& part : parts) {
    tokens += part.tokens;
    answers += part.answers ? 1 : 0;
    context += part.context;
    coded_pairs += part.tokens * (part.context + 0.5 * (part.tokens - 1));
    const double pairs = part.tokens * (part.context + 0.5 * (part.tokens + 1));
    time.attention += model_.layers * std::max(pairs * pair, (part.context + 1) * read);
  }
  const double values = context * model_.kv_values();
  const double operations = values * kv_.open_operations / gpus + coded_pairs * layer.heads *
                                                                      kv_.approximate_operations /
                                                                      parallel_.tensor;
  time.open = model_.layers * operations / gpu_.vector_rate;
  if (kv_.opens_to_memory) time.open += model_.layers * 4 * values / (gpus * memory);
  if (kv_.seal_share > 0) {
    time.seal = model_.layers * tokens * (2 * model_.kv_values() + kv_.resident_bytes) /
                (gpus * gpu_.memory_rate * kv_.seal_share);
  }
  time.products = products(tokens, answers);
  time.exchange = exchange(tokens);
  time.overhead = overheads_.step + model_.layers * overheads_.layer;
  return time;
}

double StepCost::coding(double values, double share) const {
  return share == 0 ? 0 : 2 * values / (kv_gpus() * gpu_.memory_rate * share);
}

double StepCost::products(int tokens, int sampled) const {
  const double memory = gpu_.memory_share * gpu_.memory_rate;
  const double matrix = gpu_.matrix_share * gpu_.matrix_rate;
  const auto seconds = [&](double parameters, int rows) {
    return std::max(2 * parameters * rows / matrix, 2 * parameters / memory) / parallel_.tensor;
  };
  const double rows = 2.0 * kRowPasses * tokens * model_.layer.hidden / memory;
  return model_.layers * (seconds(model_.layer.parameters, tokens) + rows) +
         (sampled == 0 ? 0 : seconds(model_.output_parameters, sampled));
}

double StepCost::exchange(int tokens) const {
  const double bytes = 2.0 * tokens * model_.layer.hidden;
  double seconds = 0;
  if (parallel_.tensor > 1) {
    // A ring: each GPU sends all but its own part twice.
    const double around = 2.0 * (parallel_.tensor - 1) / parallel_.tensor * bytes / gpu_.peer_rate;
    seconds += model_.layers * kExchanges * (gpu_.peer_delay + around);
  }
  if (parallel_.pipeline > 1) {
    seconds += (parallel_.pipeline - 1) * (gpu_.peer_delay + bytes / gpu_.peer_rate);
  }
  return seconds;
}

double StepCost::kv_gpus() const {
  const int heads = model_.layer.kv_heads;
  // Those with the most heads are waited for.
  const int most = (heads + parallel_.tensor - 1) / parallel_.tensor;
  return double(heads) / most;
}

double StepCost::tokens_in_memory(double share) const {
  const double room = share * gpu_.memory_bytes * parallel_.gpus() - model_.weight_bytes();
  const double copies = parallel_.tensor / kv_gpus();  // of each head, or room for one
  return room / (model_.layers * kv_.resident_bytes * copies);
}

}  // namespace kvlane
