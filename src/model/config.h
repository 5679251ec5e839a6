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
  enum class Kind { kNone, kLinear, kLlama3, kYarn, kLongRope };
  Kind kind = Kind::kNone;
  double factor = 1;
  int original_max_position = 8192;
  // Of llama3.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // Of yarn and longrope: that cos and sin are multiplied by, so that scores grow by its square.
  double attention_factor = 1;
  // Of yarn.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  // Of longrope: divisors of the frequencies, [head_dim / 2] each; which of them, the length that
  // sequences may have decides.
  std::vector<double> short_factors, long_factors;
};

enum class NormKind { kRms, kLayer };
// Between the products of the feed-forward network; swiglu is silu of one product times another.
enum class Activation { kSwiGlu, kRelu, kGelu };

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

// Supported: the families of model/family.h. Dimensions are validated: positive, below the limits
// above, heads a multiple of kv_heads, head_dim even; token ids lie inside the vocabulary.
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
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSwiGlu;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool ffn_bias = false;
  bool parallel = false;         // attention and feed-forward read the same residual stream
  bool shared_norm = false;      // and are behind one norm
  int window = 0;                // tokens that a query attends to, its own included; 0: all
  int windowed_first = 0;        // the first layer with that window; those before it see all
  int learned_positions = 0;     // rows of their table, that of position 0 behind `position_offset`
  int position_offset = 0;       // others; without a table positions are rotary
  bool tied_embeddings = false;  // the output projection is the embedding table
  ElementType type = ElementType::kBf16;  // of the weights
  std::int32_t bos = -1;                  // -1: none
  std::vector<std::int32_t> eos;          // any of them ends an answer

  int window_of(int layer) const { return layer >= windowed_first ? window : 0; }

  // The cache this model needs. F32 and BF16 checkpoints keep BF16 rows.
  KvShape kv_shape() const { return {layers, kv_heads, head_dim, ElementType::kBf16}; }
};

// Parses the text of config.json, with the defaults of transformers where a field is absent.
// Unknown architectures and features that would change the result (other activations, windows of
// less than a block, other RoPE scalings, quantised weights) are kUnsupported and named; everything
// else wrong is kInvalidArgument and named.
Result<ModelConfig> parse_model_config(std::string_view config_json);

// Takes over what generation_config.json says better: the ids that end an answer.
Status apply_generation_config(std::string_view generation_config_json, ModelConfig& config);

}  // namespace kvlane
