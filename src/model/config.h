// config.json of a Hugging Face checkpoint, reduced to what the forward pass needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

// Upper limits of the dimensions: above every public model of these families, and small enough that
// no product of two of them overflows an int and no product of three a 64-bit size.
inline constexpr int kLayersMax = 512;
inline constexpr int kHiddenMax = 1 << 15;
inline constexpr int kHeadsMax = 512;
inline constexpr int kHeadDimMax = 512;
inline constexpr int kFfnMax = 1 << 18;
inline constexpr int kVocabMax = 1 << 21;
inline constexpr int kContextMax = 1 << 24;
inline constexpr int kEosMax = 64;

// Supported: LlamaForCausalLM and Qwen3ForCausalLM. Dimensions are validated: positive, below the
// limits above, heads a multiple of kv_heads, head_dim even; token ids lie inside the vocabulary.
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
  bool qk_norm = false;  // RMSNorm over head_dim of each query and key head, before RoPE (Qwen3)
  bool tied_embeddings = false;           // the output projection is the embedding table
  ElementType type = ElementType::kBf16;  // of the weights
  std::int32_t bos = -1;                  // -1: none
  std::vector<std::int32_t> eos;          // any of them ends an answer

  // The cache this model needs. F32 and BF16 checkpoints keep BF16 rows.
  KvShape kv_shape() const { return {layers, kv_heads, head_dim, ElementType::kBf16}; }
};

// Parses the text of config.json, with the defaults of transformers where a field is absent.
// Unknown architectures and features that would change the result (biases, other activations,
// sliding windows in use, other RoPE scalings, quantised weights) are kUnsupported and named;
// everything else wrong is kInvalidArgument and named.
Result<ModelConfig> parse_model_config(std::string_view config_json);

// Takes over what generation_config.json says better: the ids that end an answer.
Status apply_generation_config(std::string_view generation_config_json, ModelConfig& config);

}  // namespace kvlane
