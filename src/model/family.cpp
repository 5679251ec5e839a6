// The list of families, and what they share.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvlane {
namespace {

constexpr std::array<const Family*, 7> kFamilies = {&kLlamaFamily, &kMistralFamily, &kQwen2Family,
                                                    &kQwen3Family, &kPhi3Family,    &kFalconFamily,
                                                    &kOptFamily};

using Json = nlohmann::json;

void read_llama3(FieldReader& rope, RopeScaling& scaling, const std::string& name) {
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.factor = rope.positive("factor");
  scaling.low_freq_factor = rope.positive("low_freq_factor");
  scaling.high_freq_factor = rope.positive("high_freq_factor");
  // Between the two lies the smooth part; its formula divides by their difference.
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.fail(invalid_argument(name + ".high_freq_factor is not above low_freq_factor"));
  }
}

// max_position_embeddings may be what the model had before its positions were scaled.
void widen_context(ModelConfig& config, double positions) {
  const double most = std::min(positions, static_cast<double>(kContextMax));
  config.context = std::max(config.context, static_cast<int>(most));
}

// One RoPE a type of layers.
void refuse_nested(FieldReader& rope, const Json& members, const std::string& name) {
  for (const auto& [key, member] : members.items()) {
    if (!member.is_object()) continue;
    rope.fail(unsupported(name + "." + in_quotes(key) +
                          " is an object; kvlane has one RoPE for all layers"));
  }
}

double yarn_scale(double factor, double slope) {
  return factor <= 1 ? 1 : 0.1 * slope * std::log(factor) + 1;
}

void read_yarn(FieldReader& rope, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.factor = rope.positive("factor");
  scaling.beta_fast = rope.positive("beta_fast", 32.0);
  scaling.beta_slow = rope.positive("beta_slow", 1.0);
  scaling.truncate = rope.flag("truncate", true);
  double scale = yarn_scale(scaling.factor, 1);
  if (rope.find("mscale") != nullptr && rope.find("mscale_all_dim") != nullptr) {
    scale = yarn_scale(scaling.factor, rope.positive("mscale")) /
            yarn_scale(scaling.factor, rope.positive("mscale_all_dim"));
  }
  scaling.attention_factor = rope.positive("attention_factor", scale);
}

void read_longrope(FieldReader& rope, RopeScaling& scaling, const ModelConfig& config) {
  scaling.kind = RopeScaling::Kind::kLongRope;
  const auto pairs = std::size_t(config.head_dim) / 2;
  scaling.short_factors = rope.positives("short_factor", pairs);
  scaling.long_factors = rope.positives("long_factor", pairs);
  const double original = scaling.original_max_position;
  scaling.factor = rope.positive("factor", config.context / original);
  const double scale =
      scaling.factor <= 1 ? 1 : std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  scaling.attention_factor = rope.positive("attention_factor", scale);
}

void read_scaling(FieldReader& rope, const std::string& type, const std::string& name,
                  ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  if (type == "llama3") {
    read_llama3(rope, scaling, name);
  } else if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = rope.positive("factor");
    widen_context(config, config.context * scaling.factor);
  } else if (type == "yarn") {
    read_yarn(rope, scaling);
    widen_context(config, scaling.original_max_position * scaling.factor);
  } else if (type == "longrope") {
    read_longrope(rope, scaling, config);
  } else if (type != "default") {
    rope.fail(unsupported(name + " has the type " + in_quotes(type) +
                          "; kvlane knows default, linear, llama3, yarn and longrope"));
  }
}

void read_dimensions(FieldReader& fields, const DimensionDefaults& defaults, ModelConfig& config) {
  config.layers = fields.integer("num_hidden_layers", 1, kLayersMax);
  config.hidden = fields.integer("hidden_size", 1, kHiddenMax);
  config.heads = fields.integer("num_attention_heads", 1, kHeadsMax);
  // Null is as many as query heads everywhere.
  const bool grouped = defaults.kv_heads != 0 && !fields.has("num_key_value_heads");
  const int kv_heads_default = grouped ? defaults.kv_heads : config.heads;
  config.kv_heads = fields.integer("num_key_value_heads", 1, kHeadsMax, kv_heads_default);
  config.head_dim =
      fields.integer("head_dim", 2, kHeadDimMax,
                     defaults.head_dim != 0 ? defaults.head_dim : config.hidden / config.heads);
  config.ffn = fields.integer("intermediate_size", 1, kFfnMax);
  config.vocab = fields.integer("vocab_size", 1, kVocabMax);
  config.context = fields.integer("max_position_embeddings", 1, kContextMax, defaults.context);
  config.norm_eps = static_cast<float>(fields.positive("rms_norm_eps", defaults.norm_eps));
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
}

void read_silu(FieldReader& fields) {
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    fields.fail(unsupported("hidden_act is " + in_quotes(act) + "; kvlane computes silu"));
  }
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(const ModelConfig& config) {
  const auto found = std::ranges::find(kFamilies, config.architecture, &Family::architecture);
  return found == kFamilies.end() ? kLlamaFamily : **found;
}

void read_llama_like(FieldReader& fields, const DimensionDefaults& defaults, ModelConfig& config) {
  read_dimensions(fields, defaults, config);
  check_dimensions(fields, config);
  read_rope(fields, config, defaults.longrope_context);
  read_silu(fields);
  refuse_quantised(fields);
}

void check_dimensions(FieldReader& fields, const ModelConfig& config) {
  if (config.heads % config.kv_heads != 0) {
    fields.fail(invalid_argument("num_attention_heads " + std::to_string(config.heads) +
                                 " is not a multiple of num_key_value_heads " +
                                 std::to_string(config.kv_heads)));
  }
  // The default head_dim has not passed the range check of a field.
  if (config.head_dim < 2 || config.head_dim > kHeadDimMax || config.head_dim % 2 != 0) {
    fields.fail(invalid_argument("head_dim is " + std::to_string(config.head_dim) +
                                 ", which is not an even number from 2 to " +
                                 std::to_string(kHeadDimMax)));
  }
}

// Old files have rope_theta and rope_scaling side by side, those of transformers 5 have
// rope_parameters with both inside. As there, a rope_scaling that says something wins, and for the
// context before scaling what stands outside of it.
void read_rope(FieldReader& fields, ModelConfig& config, int longrope_context) {
  config.rope_theta = fields.positive("rope_theta", 10000.0);
  if (fields.positive("partial_rotary_factor", 1.0) != 1.0) {
    fields.fail(unsupported("partial_rotary_factor is not 1"));
  }
  std::string name = "rope_scaling";
  const Json* rope = fields.find(name.c_str());
  if (rope == nullptr || rope->empty()) {
    name = "rope_parameters";
    rope = fields.find(name.c_str());
  }
  if (rope == nullptr) return;
  if (!rope->is_object()) return fields.fail(invalid_argument(name + " is no object"));

  FieldReader inner(*rope, name + ".");
  config.rope_theta = inner.positive("rope_theta", config.rope_theta);
  if (inner.positive("partial_rotary_factor", 1.0) != 1.0) {
    inner.fail(unsupported(name + ".partial_rotary_factor is not 1"));
  }
  refuse_nested(inner, *rope, name);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const int inside = inner.integer(kOriginal, 1, kContextMax, config.context);
  config.rope_scaling.original_max_position =
      fields.integer(kOriginal, 1, kContextMax, longrope_context != 0 ? longrope_context : inside);
  // Phi-3's first files have two other names for longrope.
  std::string type = inner.text("rope_type", inner.text("type", "default").c_str());
  if (type == "su" || (type == "yarn" && longrope_context != 0)) type = "longrope";
  if (longrope_context != 0 && type != "longrope" && type != "default") {
    inner.fail(unsupported(name + " has the type " + in_quotes(type) +
                           "; this family has longrope alone"));
  }
  read_scaling(inner, type, name, config);
  fields.fail(inner.status());
}

void refuse_quantised(FieldReader& fields) {
  if (fields.find("quantization_config") != nullptr) {
    fields.fail(
        unsupported("it has a quantization_config; kvlane reads F32, BF16 and F16 weights"));
  }
}

void check_layer_types(FieldReader& fields, const ModelConfig& config) {
  const Json* const types = fields.find("layer_types");
  if (types == nullptr) return;
  int layer = 0;
  for (const Json& type : *types) {
    const bool windowed = config.window_of(layer++) > 0;
    if (type == (windowed ? "sliding_attention" : "full_attention")) continue;
    fields.fail(unsupported("layer_types has " +
                            (type.is_string() ? in_quotes(type.get<std::string>()) : "no text") +
                            " where the other fields say " + (windowed ? "a window" : "none")));
  }
}

void set_window(FieldReader& fields, int window, int first_layer, ModelConfig& config) {
  if (window == INT32_MAX || first_layer >= config.layers) return;
  if (window < std::min(config.context, int{kBlockTokens})) {
    return fields.fail(unsupported("sliding_window is " + std::to_string(window) +
                                   "; kvlane attends to " + std::to_string(kBlockTokens) +
                                   " tokens at least"));
  }
  config.window = window;
  config.windowed_first = first_layer;
}

}  // namespace kvlane
