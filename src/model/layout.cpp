// Names and shapes of the tensors of Llama and Qwen3.
// SPDX-License-Identifier: Apache-2.0
#include "model/layout.h"

#include <string>
#include <utility>

namespace kvlane {

std::vector<TensorSpec> model_tensors(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden;
  const std::int64_t query = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t key = std::int64_t{config.kv_heads} * config.head_dim;
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    tensors.push_back({std::move(name) + ".weight", config.type, std::move(shape)});
  };

  add("model.embed_tokens", {config.vocab, hidden});
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm", {hidden});
    add(prefix + "self_attn.q_proj", {query, hidden});
    add(prefix + "self_attn.k_proj", {key, hidden});
    add(prefix + "self_attn.v_proj", {key, hidden});
    if (config.qk_norm) {
      add(prefix + "self_attn.q_norm", {config.head_dim});
      add(prefix + "self_attn.k_norm", {config.head_dim});
    }
    add(prefix + "self_attn.o_proj", {hidden, query});
    add(prefix + "post_attention_layernorm", {hidden});
    add(prefix + "mlp.gate_proj", {config.ffn, hidden});
    add(prefix + "mlp.up_proj", {config.ffn, hidden});
    add(prefix + "mlp.down_proj", {hidden, config.ffn});
  }
  add("model.norm", {hidden});
  if (!config.tied_embeddings) add("lm_head", {config.vocab, hidden});
  return tensors;
}

}  // namespace kvlane
