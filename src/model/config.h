// config.json of a Hugging Face checkpoint, reduced to what the forward pass needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "format/element.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

// Long-context correction of the rotary frequencies ("rope_type" of config.json).
struct RopeScaling {
  enum class Kind { kNone, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position = 8192;
};

// Supported: LlamaForCausalLM and Qwen3ForCausalLM. Dimensions are validated: positive, below stated
// limits, heads a multiple of kv_heads, head_dim even.
struct ModelConfig {
  std::string architecture;
  int layers = 0;
  int hidden = 0;  // model width D
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // need not be hidden / heads
  int ffn = 0;
  int vocab = 0;
  int context = 0;  // max_position_embeddings
  float norm_eps = 1e-5F;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool qk_norm = false;         // RMSNorm over head_dim of each query and key head, before RoPE (Qwen3)
  bool tied_embeddings = false;  // the output projection is the embedding table
  ElementType type = ElementType::kBf16;  // of the weights
  std::int32_t bos = -1;  // -1: none
  std::vector<std::int32_t> eos;

  // The cache this model needs. F32 and BF16 checkpoints keep BF16 rows.
  KvShape kv_shape() const { return {layers, kv_heads, head_dim, ElementType::kBf16}; }
};

// Parses the text of config.json; unknown architectures, features that would change the result
// (biases, other activations, sliding windows, other RoPE scalings) are kUnsupported and named.
Result<ModelConfig> parse_model_config(std::string_view config_json);

}  // namespace kvlane
