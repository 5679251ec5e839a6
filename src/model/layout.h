// Where a checkpoint has what the forward pass reads: tensors as Hugging Face names them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace kvlane {

// Rows `first` ... `first` + `rows` - 1 of a matrix, or elements of a vector, of `rows_all`.
struct TensorRows {
  std::string name;
  int rows_all;
  int first;
  int rows;

  static TensorRows all(std::string name, int rows) { return {std::move(name), rows, 0, rows}; }
};

// Some rows, one behind the other. None: the model has no such part.
using StackedRows = std::vector<TensorRows>;

// Rows `first` ... `first` + `count` - 1 of those.
StackedRows rows_of(const StackedRows& stacked, int first, int count);

// A product: weights [outputs][inputs], and what is added to it.
struct ProductLayout {
  StackedRows weights;
  StackedRows bias;
};

// A norm's vectors; empty names: the model has none.
struct NormLayout {
  std::string weight;
  std::string bias;
};

struct LayerLayout {
  NormLayout attention_norm;
  NormLayout q_norm, k_norm;  // of heads
  ProductLayout qkv;          // all queries, then all keys, then all values
  ProductLayout attention_out;
  NormLayout ffn_norm;
  ProductLayout ffn_in;  // gate, then up; or up alone
  ProductLayout ffn_out;
};

struct ModelLayout {
  std::string embedding;  // [vocab][hidden]
  std::string positions;  // [learned positions][hidden]; empty without
  std::vector<LayerLayout> layers;
  NormLayout final_norm;
  std::string head;  // [vocab][hidden]: the embedding where it is tied
};

ModelLayout model_layout(const ModelConfig& config);

// Every tensor of that, whole and once, in the order of use: embedding, layers, final norm, output
// projection.
std::vector<TensorSpec> model_tensors(const ModelConfig& config);

}  // namespace kvlane
