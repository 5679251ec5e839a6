// The part of a model that one of several ranks computes: the layers of its stage, and of each of
// them its share of heads and of every product's outputs.
//
// Products are shared out by outputs, never by inputs: ranks hand each other what they computed and
// nobody adds up partial sums. So a value has the bits that one process gives it, whatever the
// number of ranks and stages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kvlane/status.h"
#include "model/config.h"
#include "model/layout.h"

namespace kvlane {

struct ModelPart {
  int stages = 1;  // pipeline parallel: runs of layers
  int stage = 0;
  int ranks = 1;  // tensor parallel: of each stage
  int rank = 0;

  bool whole() const { return stages == 1 && ranks == 1; }
  bool begins() const { return stage == 0; }         // with embeddings
  bool ends() const { return stage == stages - 1; }  // with logits

  friend bool operator==(const ModelPart&, const ModelPart&) = default;
};

// A run of `count` things from `first` on.
struct Share {
  int first, count;

  friend bool operator==(const Share&, const Share&) = default;
};

// What `part` of `parts` has of n: one after another all of them, sizes one apart at most.
constexpr Share share_of(int n, int parts, int part) {
  const auto start_of = [&](int i) { return static_cast<int>(std::int64_t{n} * i / parts); };
  return {start_of(part), start_of(part + 1) - start_of(part)};
}

// Which of `stages` has this layer of so many.
constexpr int stage_of(int layers, int stages, int layer) {
  int stage = 0;
  while (layer >= share_of(layers, stages, stage).first + share_of(layers, stages, stage).count) {
    ++stage;
  }
  return stage;
}

inline Share layers_of(const ModelConfig& whole, const ModelPart& part) {
  return share_of(whole.layers, part.stages, part.stage);
}
inline Share kv_heads_of(const ModelConfig& whole, const ModelPart& part) {
  return share_of(whole.kv_heads, part.ranks, part.rank);
}
// Of its stage's layers those whose hidden states this rank stores: all ranks of a stage have all
// of them, and share them out. May be none.
inline Share stored_hidden_of(const ModelConfig& whole, const ModelPart& part) {
  const Share layers = layers_of(whole, part);
  const Share own = share_of(layers.count, part.ranks, part.rank);
  return {layers.first + own.first, own.count};
}

// kInvalidArgument where a stage would have no layer or a rank no KV head.
Status check_part(const ModelConfig& whole, const ModelPart& part);

// The model that this rank has, for whom cares for shapes alone: how many layers and heads. Width,
// feed-forward, vocabulary, and what is said of layers by their numbers, are the whole model's.
ModelConfig config_of(const ModelConfig& whole, const ModelPart& part);

// Where the checkpoint has this rank's rows of a layer's products; norms are everybody's.
LayerLayout layer_of(const ModelConfig& whole, const ModelPart& part, LayerLayout layer);

}  // namespace kvlane
