// Llama, and all who publish their models as one: Llama 2 and 3, Yi, TinyLlama ...
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

namespace kvlane {
namespace {

void read(FieldReader& fields, ModelConfig& config) {
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

}  // namespace

const Family kLlamaFamily{.architecture = "LlamaForCausalLM",
                          .model_type = "llama",
                          .bos = 1,
                          .eos = 2,
                          .read = read,
                          .layer = separate_layer,
                          .ends = plain_ends};

}  // namespace kvlane
