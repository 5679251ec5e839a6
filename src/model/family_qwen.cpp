// Qwen2 (and Qwen2.5) adds biases to Q, K and V; Qwen3 norms heads of Q and K instead.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

namespace kvlane {
namespace {

constexpr int kContext = 32768;

void set_qwen_window(FieldReader& fields, ModelConfig& config) {
  const int window = fields.integer("sliding_window", 0, INT32_MAX, 4096);
  const int first_windowed = fields.integer("max_window_layers", 0, INT32_MAX, 28);
  if (fields.flag("use_sliding_window", false)) set_window(fields, window, first_windowed, config);
}

void read_qwen2(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = kContext, .kv_heads = 32}, config);
  config.qkv_bias = true;
  set_qwen_window(fields, config);
}

void read_qwen3(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = kContext, .head_dim = 128}, config);
  config.qk_norm = true;
  config.qkv_bias = config.attention_out_bias = fields.flag("attention_bias", false);
  set_qwen_window(fields, config);
}

}  // namespace

const Family kQwen2Family{.architecture = "Qwen2ForCausalLM",
                          .model_type = "qwen2",
                          .bos = -1,
                          .eos = -1,
                          .read = read_qwen2,
                          .layer = separate_layer,
                          .ends = plain_ends};

const Family kQwen3Family{.architecture = "Qwen3ForCausalLM",
                          .model_type = "qwen3",
                          .bos = -1,
                          .eos = -1,
                          .read = read_qwen3,
                          .layer = separate_layer,
                          .ends = plain_ends};

}  // namespace kvlane
