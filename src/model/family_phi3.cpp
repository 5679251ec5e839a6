// Phi-3 (and Phi-3.5, Phi-4): Q, K and V in one matrix, gate and up in another; LongRoPE.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

namespace kvlane {
namespace {

void read(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = 4096, .norm_eps = 1e-5}, config);
  set_window(fields, fields.integer("sliding_window", 1, INT32_MAX, INT32_MAX), 0, config);
}

LayerLayout layer_of(const ModelConfig& config, int index) {
  LayerLayout layer = separate_layer(config, index);
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int qkv = (config.heads + 2 * config.kv_heads) * config.head_dim;
  layer.qkv.weights = {TensorRows::all(prefix + "self_attn.qkv_proj.weight", qkv)};
  layer.ffn_in.weights = {TensorRows::all(prefix + "mlp.gate_up_proj.weight", 2 * config.ffn)};
  return layer;
}

}  // namespace

const Family kPhi3Family{.architecture = "Phi3ForCausalLM",
                         .model_type = "phi3",
                         .bos = 1,
                         .eos = 32000,
                         .read = read,
                         .layer = layer_of,
                         .ends = plain_ends};

}  // namespace kvlane
