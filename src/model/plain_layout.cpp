// By the names of Llama.
// SPDX-License-Identifier: Apache-2.0
#include "model/plain_layout.h"

#include <string>
#include <utility>

namespace kvlane {

ProductLayout whole_product(const std::vector<std::pair<std::string, int>>& parts, bool bias) {
  ProductLayout product;
  for (const auto& [name, rows] : parts) {
    product.weights.push_back(TensorRows::all(name + ".weight", rows));
    if (bias) product.bias.push_back(TensorRows::all(name + ".bias", rows));
  }
  return product;
}

LayerLayout separate_layer(const ModelConfig& config, int index) {
  const int q = config.heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  LayerLayout layer;
  layer.attention_norm.weight = prefix + "input_layernorm.weight";
  layer.qkv = whole_product(
      {{attention + "q_proj", q}, {attention + "k_proj", kv}, {attention + "v_proj", kv}},
      config.qkv_bias);
  if (config.qk_norm) {
    layer.q_norm.weight = attention + "q_norm.weight";
    layer.k_norm.weight = attention + "k_norm.weight";
  }
  layer.attention_out =
      whole_product({{attention + "o_proj", config.hidden}}, config.attention_out_bias);
  layer.ffn_norm.weight = prefix + "post_attention_layernorm.weight";
  layer.ffn_in = whole_product({{mlp + "gate_proj", config.ffn}, {mlp + "up_proj", config.ffn}},
                               config.ffn_bias);
  layer.ffn_out = whole_product({{mlp + "down_proj", config.hidden}}, config.ffn_bias);
  return layer;
}

ModelLayout plain_ends(const ModelConfig&) {
  ModelLayout ends;
  ends.embedding = "model.embed_tokens.weight";
  ends.final_norm.weight = "model.norm.weight";
  ends.head = "lm_head.weight";
  return ends;
}

ModelLayout plain_layout(const ModelConfig& config) {
  ModelLayout layout = plain_ends(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    layout.layers.push_back(separate_layer(config, layer));
  }
  if (config.tied_embeddings) layout.head = layout.embedding;
  return layout;
}

}  // namespace kvlane
