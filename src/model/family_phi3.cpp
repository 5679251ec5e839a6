// Phi-3 (and Phi-3.5, Phi-4): Q, K and V in one matrix, gate and up in another; LongRoPE.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"
#include "model/gguf_config_writer.h"

namespace kvlane {
namespace {

void read_phi3(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = 4096, .norm_eps = 1e-5, .longrope_context = 4096}, config);
  set_window(fields, fields.integer("sliding_window", 1, INT32_MAX, INT32_MAX), 0, config);
}

LayerLayout phi3_layer(const ModelConfig& config, int index) {
  LayerLayout layer = separate_layer(config, index);
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int qkv = (config.heads + 2 * config.kv_heads) * config.head_dim;
  layer.qkv.weights = {TensorRows::all(prefix + "self_attn.qkv_proj.weight", qkv)};
  layer.ffn_in.weights = {TensorRows::all(prefix + "mlp.gate_up_proj.weight", 2 * config.ffn)};
  return layer;
}

void write_phi3_gguf(GgufConfigWriter& writer) {
  writer.llama_like();
  if (const int window = writer.window_of_all(); window > 0) {
    writer.set_integer("sliding_window", window);
  }
  // Of an answer and of a text: the file names one of them.
  writer.add_end_token("<|end|>");
  writer.add_end_token("<|endoftext|>");
}

constexpr std::array<GgufName, 6> kPhi3GgufLayer = {{
    {"attn_norm", "input_layernorm"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr GgufForm kPhi3Gguf{.architecture = "phi3",
                             .write = write_phi3_gguf,
                             .layers = kPlainGgufLayers,
                             .layer = kPhi3GgufLayer,
                             .ends = kPlainGgufEnds};

}  // namespace

const Family kPhi3Family{.architecture = "Phi3ForCausalLM",
                         .model_type = "phi3",
                         .bos = 1,
                         .eos = 32000,
                         .read = read_phi3,
                         .layer = phi3_layer,
                         .ends = plain_ends,
                         .gguf = &kPhi3Gguf};

}  // namespace kvlane
