// Qwen2 (and Qwen2.5) adds biases to Q, K and V; Qwen3 norms heads of Q and K instead.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"
#include "model/gguf_config_writer.h"

namespace kvlane {
namespace {

constexpr int kQwenContext = 32768;
constexpr int kQwenWindow = 4096;  // of files that do not name it; null is none

void set_qwen_window(FieldReader& fields, ModelConfig& config) {
  const int otherwise = fields.has("sliding_window") ? INT32_MAX : kQwenWindow;
  const int window = fields.integer("sliding_window", 0, INT32_MAX, otherwise);
  const int first_windowed = fields.integer("max_window_layers", 0, INT32_MAX, 28);
  if (fields.flag("use_sliding_window", false)) set_window(fields, window, first_windowed, config);
}

void read_qwen2(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = kQwenContext, .kv_heads = 32}, config);
  config.qkv_bias = true;
  set_qwen_window(fields, config);
}

void read_qwen3(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = kQwenContext, .head_dim = 128}, config);
  config.qk_norm = true;
  config.qkv_bias = config.attention_out_bias = fields.flag("attention_bias", false);
  set_qwen_window(fields, config);
}

void write_qwen2_gguf(GgufConfigWriter& writer) {
  writer.llama_like();
  const GgufConfigWriter::Window window = writer.window();
  if (window.tokens == 0) return;
  writer.set_flag("use_sliding_window", true);
  writer.set_integer("sliding_window", window.tokens);
  writer.set_integer("max_window_layers", window.first_layer);
}

void write_qwen3_gguf(GgufConfigWriter& writer) {
  write_qwen2_gguf(writer);
  writer.set_flag("attention_bias", writer.has_tensor("blk.0.attn_output.bias"));
}

constexpr GgufForm kQwen2Gguf{.architecture = "qwen2",
                              .write = write_qwen2_gguf,
                              .layers = kPlainGgufLayers,
                              .layer = kPlainGgufLayer,
                              .ends = kPlainGgufEnds};
constexpr GgufForm kQwen3Gguf{.architecture = "qwen3",
                              .write = write_qwen3_gguf,
                              .layers = kPlainGgufLayers,
                              .layer = kPlainGgufLayer,
                              .ends = kPlainGgufEnds};

}  // namespace

const Family kQwen2Family{.architecture = "Qwen2ForCausalLM",
                          .model_type = "qwen2",
                          .bos = -1,
                          .eos = -1,
                          .read = read_qwen2,
                          .layer = separate_layer,
                          .ends = plain_ends,
                          .gguf = &kQwen2Gguf};

const Family kQwen3Family{.architecture = "Qwen3ForCausalLM",
                          .model_type = "qwen3",
                          .bos = -1,
                          .eos = -1,
                          .read = read_qwen3,
                          .layer = separate_layer,
                          .ends = plain_ends,
                          .gguf = &kQwen3Gguf};

}  // namespace kvlane
