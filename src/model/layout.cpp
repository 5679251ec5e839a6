// The list of tensors, from what layers are made of.
// SPDX-License-Identifier: Apache-2.0
#include "model/layout.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "model/family.h"

namespace kvlane {
namespace {

// Collects tensors, each when it is named first.
class Tensors {
 public:
  explicit Tensors(ElementType type) : type_(type) {}

  void add(const std::string& name, std::vector<std::int64_t> shape) {
    if (name.empty() || !seen_.insert(name).second) return;
    specs_.push_back({name, type_, std::move(shape)});
  }
  void add(const NormLayout& norm, int n) {
    add(norm.weight, {n});
    add(norm.bias, {n});
  }
  void add(const ProductLayout& product, int inputs) {
    for (const TensorRows& part : product.weights) add(part.name, {part.rows_all, inputs});
    for (const TensorRows& part : product.bias) add(part.name, {part.rows_all});
  }
  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  const ElementType type_;
  std::set<std::string> seen_;
  std::vector<TensorSpec> specs_;
};

}  // namespace

StackedRows rows_of(const StackedRows& stacked, int first, int count) {
  StackedRows cut;
  for (TensorRows part : stacked) {
    const int skipped = std::min(first, part.rows);
    first -= skipped;
    part.first += skipped;
    part.rows = std::min(part.rows - skipped, count);
    count -= part.rows;
    if (part.rows > 0) cut.push_back(std::move(part));
  }
  return cut;
}

ModelLayout model_layout(const ModelConfig& config) {
  const Family& family = family_of(config);
  ModelLayout layout = family.ends(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    layout.layers.push_back(family.layer(config, layer));
  }
  if (config.tied_embeddings) layout.head = layout.embedding;
  return layout;
}

std::vector<TensorSpec> model_tensors(const ModelConfig& config) {
  const ModelLayout layout = model_layout(config);
  Tensors tensors(config.type);
  tensors.add(layout.embedding, {config.vocab, config.hidden});
  tensors.add(layout.positions, {config.learned_positions, config.hidden});
  for (const LayerLayout& layer : layout.layers) {
    tensors.add(layer.attention_norm, config.hidden);
    tensors.add(layer.qkv, config.hidden);
    tensors.add(layer.q_norm, config.head_dim);
    tensors.add(layer.k_norm, config.head_dim);
    tensors.add(layer.attention_out, config.heads * config.head_dim);
    tensors.add(layer.ffn_norm, config.hidden);
    tensors.add(layer.ffn_in, config.hidden);
    tensors.add(layer.ffn_out, config.ffn);
  }
  tensors.add(layout.final_norm, config.hidden);
  tensors.add(layout.head, {config.vocab, config.hidden});
  return tensors.take();
}

}  // namespace kvlane
