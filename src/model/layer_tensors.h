// The tensors of one layer by the names that Hugging Face gives them: the one list for all who load
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kvlane/status.h"
#include "model/config.h"

namespace kvlane {

// Calls vector(name, n, part) and matrices(names, rows, k, part) for each member of `layer` that
// the model has, until one fails. Matrices [rows_i][k] are stacked where they share their input.
template <class Layer, class Vector, class Matrices>
Status for_each_tensor_of_layer(const ModelConfig& config, int index, Layer& layer,
                                const Vector& vector, const Matrices& matrices) {
  const int q = config.heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  using Names = std::vector<std::string>;
  using Rows = std::vector<int>;
  KVLANE_TRY(vector(prefix + "input_layernorm.weight", config.hidden, layer.attention_norm));
  if (config.qk_norm) {
    KVLANE_TRY(vector(attention + "q_norm.weight", config.head_dim, layer.q_norm));
    KVLANE_TRY(vector(attention + "k_norm.weight", config.head_dim, layer.k_norm));
  }
  KVLANE_TRY(matrices(
      Names{attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
      Rows{q, kv, kv}, config.hidden, layer.qkv));
  KVLANE_TRY(
      matrices(Names{attention + "o_proj.weight"}, Rows{config.hidden}, q, layer.attention_out));
  KVLANE_TRY(vector(prefix + "post_attention_layernorm.weight", config.hidden, layer.ffn_norm));
  KVLANE_TRY(matrices(Names{mlp + "gate_proj.weight", mlp + "up_proj.weight"},
                      Rows{config.ffn, config.ffn}, config.hidden, layer.gate_up));
  return matrices(Names{mlp + "down_proj.weight"}, Rows{config.hidden}, config.ffn, layer.down);
}

}  // namespace kvlane
