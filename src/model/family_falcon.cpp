// Falcon: LayerNorm, GELU without a gate, attention and feed-forward side by side, and Q, K and V
// of each KV head next to each other in one matrix.
// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"
#include "model/gguf_config_writer.h"

namespace kvlane {
namespace {

void read_falcon(FieldReader& fields, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.activation = Activation::kGelu;
  config.layers = fields.integer("num_hidden_layers", 1, kLayersMax);
  config.hidden = fields.integer("hidden_size", 1, kHiddenMax);
  config.heads = fields.integer("num_attention_heads", 1, kHeadsMax);
  config.head_dim = config.hidden / config.heads;
  config.ffn = fields.integer("ffn_hidden_size", 1, kFfnMax, 4 * config.hidden);
  config.vocab = fields.integer("vocab_size", 1, kVocabMax, 65024);
  config.context = fields.integer("max_position_embeddings", 1, kContextMax, 2048);
  config.norm_eps = static_cast<float>(fields.positive("layer_norm_epsilon", 1e-5));
  config.tied_embeddings = fields.flag("tie_word_embeddings", true);
  config.qkv_bias = config.attention_out_bias = config.ffn_bias = fields.flag("bias", false);
  config.parallel = fields.flag("parallel_attn", true);
  if (fields.flag("new_decoder_architecture", false)) {
    config.kv_heads = fields.integer("num_kv_heads", 1, kHeadsMax, config.heads);
    config.shared_norm = fields.integer("num_ln_in_parallel_attn", 1, 2, 2) == 1;
    if (!config.parallel) {
      fields.fail(unsupported("new_decoder_architecture is true and parallel_attn false"));
    }
  } else {
    config.kv_heads = fields.flag("multi_query", true) ? 1 : config.heads;
    config.shared_norm = config.parallel;
  }
  check_dimensions(fields, config);
  if (fields.flag("alibi", false)) {
    fields.fail(unsupported("alibi is true; kvlane computes rotary and learned positions"));
  }
  if (const std::string act = fields.text("activation", "gelu"); act != "gelu") {
    fields.fail(unsupported("activation is " + in_quotes(act) + "; kvlane computes gelu here"));
  }
  read_rope(fields, config);
  refuse_quantised(fields);
}

// The group's query heads, then its K, then its V.
StackedRows falcon_grouped(const ModelConfig& config, const std::string& name) {
  const int d = config.head_dim;
  const int group = config.heads / config.kv_heads;
  const int all = (config.heads + 2 * config.kv_heads) * d;
  StackedRows rows;
  const auto take = [&](int first, int count) {
    for (int head = 0; head < config.kv_heads; ++head) {
      rows.push_back({name, all, (head * (group + 2) + first) * d, count * d});
    }
  };
  take(0, group);
  take(group, 1);
  take(group + 1, 1);
  return rows;
}

LayerLayout falcon_layer(const ModelConfig& config, int index) {
  const std::string prefix = "transformer.h." + std::to_string(index) + ".";
  const auto norm = [&](const char* name) {
    return NormLayout{prefix + name + ".weight", prefix + name + ".bias"};
  };
  const bool two_norms = config.parallel && !config.shared_norm;
  const std::string qkv = prefix + "self_attention.query_key_value";
  LayerLayout layer;
  layer.attention_norm = norm(two_norms ? "ln_attn" : "input_layernorm");
  layer.qkv.weights = falcon_grouped(config, qkv + ".weight");
  if (config.qkv_bias) layer.qkv.bias = falcon_grouped(config, qkv + ".bias");
  layer.attention_out =
      whole_product({{prefix + "self_attention.dense", config.hidden}}, config.attention_out_bias);
  layer.ffn_norm = two_norms            ? norm("ln_mlp")
                   : config.shared_norm ? layer.attention_norm
                                        : norm("post_attention_layernorm");
  layer.ffn_in = whole_product({{prefix + "mlp.dense_h_to_4h", config.ffn}}, config.ffn_bias);
  layer.ffn_out = whole_product({{prefix + "mlp.dense_4h_to_h", config.hidden}}, config.ffn_bias);
  return layer;
}

ModelLayout falcon_ends(const ModelConfig&) {
  ModelLayout ends;
  ends.embedding = "transformer.word_embeddings.weight";
  ends.final_norm = {"transformer.ln_f.weight", "transformer.ln_f.bias"};
  ends.head = "lm_head.weight";
  return ends;
}

// llama.cpp has the Falcons whose blocks are side by side, with or without a norm of the
// feed-forward block's own: in the words of the later ones, which say both.
void write_falcon_gguf(GgufConfigWriter& writer) {
  writer.dimensions();
  writer.copy_integer("ffn_hidden_size", "feed_forward_length");
  writer.copy_integer("num_kv_heads", "attention.head_count_kv",
                      writer.number("attention.head_count"));
  writer.copy_number("layer_norm_epsilon", "attention.layer_norm_epsilon");
  writer.set_flag("new_decoder_architecture", true);
  const bool two_norms = writer.has_tensor("blk.0.attn_norm_2.weight");
  writer.set_integer("num_ln_in_parallel_attn", two_norms ? 2 : 1);
  const double hidden = writer.number("embedding_length").value_or(0);
  const double heads = writer.number("attention.head_count").value_or(1);
  if (const int length = writer.head_length(); length != 0 && length * heads != hidden) {
    writer.fail(unsupported("its heads are not as long as the model is wide"));
  }
  if (const auto layout = writer.text("tensor_data_layout"); layout && *layout != "jploski") {
    writer.fail(unsupported(writer.quoted("tensor_data_layout") + " is " +
                            in_quotes(std::string(*layout)) + "; kvlane reads jploski"));
  }
  writer.refuse("attention.sliding_window", "a sliding window");
  writer.rope();
}

// Which of its two names a norm has depends on whether there is another.
constexpr std::array<GgufName, 7> kFalconGgufLayer = {{
    {"attn_norm", "input_layernorm"},
    {"attn_norm", "ln_mlp"},
    {"attn_norm_2", "ln_attn"},
    {"attn_qkv", "self_attention.query_key_value", GgufRows::kStacked},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
}};
constexpr std::array<GgufName, 3> kFalconGgufEnds = {{
    {"token_embd", "transformer.word_embeddings"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
}};
constexpr GgufForm kFalconGguf{.architecture = "falcon",
                               .write = write_falcon_gguf,
                               .layers = "transformer.h.",
                               .layer = kFalconGgufLayer,
                               .ends = kFalconGgufEnds};

}  // namespace

const Family kFalconFamily{.architecture = "FalconForCausalLM",
                           .model_type = "falcon",
                           .bos = 11,
                           .eos = 11,
                           .read = read_falcon,
                           .layer = falcon_layer,
                           .ends = falcon_ends,
                           .gguf = &kFalconGguf};

}  // namespace kvlane
