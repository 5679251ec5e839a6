// Mistral: a Llama whose queries may see a window alone.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

namespace kvlane {
namespace {

constexpr int kMistralWindow = 4096;  // of files that do not name it; null is none

void read_mistral(FieldReader& fields, ModelConfig& config) {
  read_llama_like(fields, {.context = 131072, .kv_heads = 8}, config);
  const int otherwise = fields.has("sliding_window") ? INT32_MAX : kMistralWindow;
  set_window(fields, fields.integer("sliding_window", 1, INT32_MAX, otherwise), 0, config);
}

}  // namespace

const Family kMistralFamily{.architecture = "MistralForCausalLM",
                            .model_type = "mistral",
                            .bos = 1,
                            .eos = 2,
                            .read = read_mistral,
                            .layer = separate_layer,
                            .ends = plain_ends};

}  // namespace kvlane
