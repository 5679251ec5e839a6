// OPT: learned positions, LayerNorm, ReLU, biases everywhere.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

namespace kvlane {
namespace {

// The table of positions begins with rows that nobody uses.
constexpr int kPositionOffset = 2;

void refuse_opt(FieldReader& fields, const char* name, bool wanted) {
  if (fields.flag(name, wanted) == wanted) return;
  fields.fail(unsupported(std::string(name) + " is " + (wanted ? "false" : "true") +
                          "; kvlane computes OPT's layers with their norms in front"));
}

void read_opt(FieldReader& fields, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.activation = Activation::kRelu;
  config.layers = fields.integer("num_hidden_layers", 1, kLayersMax, 12);
  config.hidden = fields.integer("hidden_size", 1, kHiddenMax, 768);
  config.heads = fields.integer("num_attention_heads", 1, kHeadsMax, 12);
  config.kv_heads = config.heads;
  config.head_dim = config.hidden / config.heads;
  config.ffn = fields.integer("ffn_dim", 1, kFfnMax, 3072);
  config.vocab = fields.integer("vocab_size", 1, kVocabMax, 50272);
  config.context = fields.integer("max_position_embeddings", 1, kContextMax, 2048);
  config.learned_positions = config.context + kPositionOffset;
  config.position_offset = kPositionOffset;
  config.tied_embeddings = fields.flag("tie_word_embeddings", true);
  config.qkv_bias = config.attention_out_bias = config.ffn_bias = fields.flag("enable_bias", true);
  check_dimensions(fields, config);
  refuse_opt(fields, "do_layer_norm_before", true);
  refuse_opt(fields, "layer_norm_elementwise_affine", true);
  refuse_opt(fields, "_remove_final_layer_norm", false);
  const int embedded = fields.integer("word_embed_proj_dim", 1, kHiddenMax, config.hidden);
  if (embedded != config.hidden) {
    fields.fail(unsupported("word_embed_proj_dim " + std::to_string(embedded) +
                            " is not hidden_size " + std::to_string(config.hidden) +
                            "; kvlane does not project embeddings"));
  }
  if (const std::string act = fields.text("activation_function", "relu"); act != "relu") {
    fields.fail(
        unsupported("activation_function is " + in_quotes(act) + "; kvlane computes relu here"));
  }
  refuse_quantised(fields);
}

LayerLayout opt_layer(const ModelConfig& config, int index) {
  const int width = config.heads * config.head_dim;
  const std::string prefix = "model.decoder.layers." + std::to_string(index) + ".";
  const auto norm = [&](const char* name) {
    return NormLayout{prefix + name + ".weight", prefix + name + ".bias"};
  };
  LayerLayout layer;
  layer.attention_norm = norm("self_attn_layer_norm");
  layer.qkv = whole_product({{prefix + "self_attn.q_proj", width},
                             {prefix + "self_attn.k_proj", width},
                             {prefix + "self_attn.v_proj", width}},
                            config.qkv_bias);
  layer.attention_out =
      whole_product({{prefix + "self_attn.out_proj", config.hidden}}, config.attention_out_bias);
  layer.ffn_norm = norm("final_layer_norm");
  layer.ffn_in = whole_product({{prefix + "fc1", config.ffn}}, config.ffn_bias);
  layer.ffn_out = whole_product({{prefix + "fc2", config.hidden}}, config.ffn_bias);
  return layer;
}

ModelLayout opt_ends(const ModelConfig&) {
  ModelLayout ends;
  ends.embedding = "model.decoder.embed_tokens.weight";
  ends.positions = "model.decoder.embed_positions.weight";
  ends.final_norm = {"model.decoder.final_layer_norm.weight",
                     "model.decoder.final_layer_norm.bias"};
  ends.head = "lm_head.weight";
  return ends;
}

}  // namespace

const Family kOptFamily{.architecture = "OPTForCausalLM",
                        .model_type = "opt",
                        .bos = 2,
                        .eos = 2,
                        .read = read_opt,
                        .layer = opt_layer,
                        .ends = opt_ends};

}  // namespace kvlane
