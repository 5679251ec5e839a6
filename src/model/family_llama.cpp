// Llama, and all who publish their models as one: Llama 2 and 3, Yi, TinyLlama ...
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"
#include "model/gguf_config_writer.h"

namespace kvlane {
namespace {

void read_llama(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = 2048}, config);
  config.qkv_bias = config.attention_out_bias = fields.flag("attention_bias", false);
  config.ffn_bias = fields.flag("mlp_bias", false);
  // Llama itself has no window: a configuration that names one is another model in its clothes.
  const int window = fields.integer("sliding_window", 0, INT32_MAX, INT32_MAX);
  if (window < config.context && fields.flag("use_sliding_window", true)) {
    fields.fail(unsupported("sliding_window " + std::to_string(window) +
                            " is in use, which Llama does not know"));
  }
}

// Mistral has the same architecture there; what tells it is its window.
void write_llama_gguf(GgufConfigWriter& writer) {
  writer.llama_like();
  if (const int window = writer.window_of_all(); window > 0) {
    writer.set_architecture(kMistralFamily.architecture);
    writer.set_integer("sliding_window", window);
    return;
  }
  writer.set_flag("attention_bias", writer.has_tensor("blk.0.attn_output.bias"));
  writer.set_flag("mlp_bias", writer.has_tensor("blk.0.ffn_down.bias"));
}

// llama.cpp rotates neighbours, so the halves of heads that transformers rotates are in turns.
constexpr std::array<GgufName, 9> kLlamaGgufLayer = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj", GgufRows::kQueryPairs},
    {"attn_k", "self_attn.k_proj", GgufRows::kKeyPairs},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr GgufForm kLlamaGguf{.architecture = "llama",
                              .write = write_llama_gguf,
                              .layers = kPlainGgufLayers,
                              .layer = kLlamaGgufLayer,
                              .ends = kPlainGgufEnds};

}  // namespace

const Family kLlamaFamily{.architecture = "LlamaForCausalLM",
                          .model_type = "llama",
                          .bos = 1,
                          .eos = 2,
                          .read = read_llama,
                          .layer = separate_layer,
                          .ends = plain_ends,
                          .gguf = &kLlamaGguf};

}  // namespace kvlane
