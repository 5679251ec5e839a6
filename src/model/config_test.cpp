// config.json: real files, transformers' defaults, both spellings of RoPE, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "base/test_paths.h"
#include "model/layout.h"

namespace kvlane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string config_text(const std::string& name) {
  const auto text =
      read_text_file(std::string(kSourceDir) + "/tests/fixtures/configs/" + name, 1 << 20);
  return text.ok() ? *text : text.status().message();
}

// The smallest valid Llama: everything else is left to defaults.
Json small_llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 2},
          {"vocab_size", 96}};
}

Json small_qwen3() {
  Json json = small_llama();
  json["architectures"] = {"Qwen3ForCausalLM"};
  return json;
}

// `base` with the fields of `changes` set.
Result<ModelConfig> parse_with(Json base, const Json& changes) {
  base.update(changes);
  return parse_model_config(base.dump());
}

void expect_refused(const Json& base, const Json& changes, Code code, const std::string& reason) {
  const auto config = parse_with(base, changes);
  ASSERT_FALSE(config.ok()) << changes;
  EXPECT_EQ(config.status().code(), code) << changes;
  EXPECT_THAT(config.status().message(), HasSubstr(reason)) << changes;
}

TEST(ModelConfig, ReadsLlama31) {
  const auto config = parse_model_config(config_text("llama-3.1-8b.json"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->layers, 32);
  EXPECT_EQ(config->hidden, 4096);
  EXPECT_EQ(config->heads, 32);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->ffn, 14336);
  EXPECT_EQ(config->vocab, 128256);
  EXPECT_EQ(config->context, 131072);
  EXPECT_EQ(config->norm_eps, 1e-5F);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(config->rope_scaling.factor, 8);
  EXPECT_EQ(config->rope_scaling.low_freq_factor, 1);
  EXPECT_EQ(config->rope_scaling.high_freq_factor, 4);
  EXPECT_EQ(config->rope_scaling.original_max_position, 8192);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->type, ElementType::kBf16);
  EXPECT_EQ(config->bos, 128000);
  EXPECT_THAT(config->eos, ElementsAre(128001, 128008, 128009));
}

TEST(ModelConfig, ReadsLlama2AndYi) {
  const auto llama = parse_model_config(config_text("llama-2-7b.json"));
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(llama->kv_heads, 32);
  EXPECT_EQ(llama->ffn, 11008);
  EXPECT_EQ(llama->rope_theta, 10000);
  EXPECT_EQ(llama->rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_EQ(llama->type, ElementType::kFp16);
  const auto yi = parse_model_config(config_text("yi-34b.json"));
  ASSERT_TRUE(yi.ok()) << yi.status().message();
  EXPECT_EQ(yi->heads, 56);
  EXPECT_EQ(yi->kv_heads, 8);
  EXPECT_EQ(yi->head_dim, 128);
  EXPECT_EQ(yi->rope_theta, 5000000);
  EXPECT_EQ(yi->type, ElementType::kBf16);
}

TEST(ModelConfig, ReadsQwen3) {
  const auto config = parse_model_config(config_text("qwen3-0.6b.json"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config->layers, 28);
  EXPECT_EQ(config->heads * config->head_dim, 2048);  // twice the model's width
  EXPECT_EQ(config->hidden, 1024);
  EXPECT_EQ(config->norm_eps, 1e-6F);
  EXPECT_EQ(config->rope_theta, 1000000);
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->bos, 151643);
  EXPECT_THAT(config->eos, ElementsAre(151645));
}

TEST(ModelConfig, DefaultsAreThoseOfTransformers) {
  const auto llama = parse_with(small_llama(), Json::object());
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(llama->kv_heads, 4);
  EXPECT_EQ(llama->head_dim, 16);
  EXPECT_EQ(llama->context, 2048);
  EXPECT_EQ(llama->norm_eps, 1e-6F);
  EXPECT_EQ(llama->rope_theta, 10000);
  EXPECT_FALSE(llama->tied_embeddings);
  EXPECT_EQ(llama->bos, 1);
  EXPECT_THAT(llama->eos, ElementsAre(2));

  const auto qwen3 = parse_with(small_qwen3(), Json::object());
  ASSERT_TRUE(qwen3.ok()) << qwen3.status().message();
  EXPECT_EQ(qwen3->head_dim, 128);
  EXPECT_EQ(qwen3->context, 32768);
  EXPECT_EQ(qwen3->bos, -1);
  EXPECT_TRUE(qwen3->eos.empty());
}

TEST(ModelConfig, NullMeansAbsentExceptForSpecialTokens) {
  const auto config = parse_with(small_llama(), {{"head_dim", nullptr},
                                                 {"num_key_value_heads", nullptr},
                                                 {"rope_scaling", nullptr},
                                                 {"bos_token_id", nullptr},
                                                 {"eos_token_id", nullptr}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->kv_heads, 4);
  for (const char* const grouped : {"MistralForCausalLM", "Qwen2ForCausalLM"}) {
    const auto other =
        parse_with(small_llama(), {{"architectures", {grouped}}, {"num_key_value_heads", nullptr}});
    ASSERT_TRUE(other.ok()) << other.status().message();
    EXPECT_EQ(other->kv_heads, 4);
  }
  EXPECT_EQ(config->bos, -1);
  EXPECT_TRUE(config->eos.empty());
}

TEST(ModelConfig, AModelTypeAloneNamesTheArchitecture) {
  Json json = small_llama();
  json.erase("architectures");
  expect_refused(json, Json::object(), Code::kUnsupported, "names no architecture");
  const auto config = parse_with(json, {{"model_type", "qwen3"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "Qwen3ForCausalLM");
}

TEST(ModelConfig, AllSpellingsOfRopeAgree) {
  const Json scaling = {{"factor", 32.0},
                        {"low_freq_factor", 1},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  Json with_type = scaling, with_rope_type = scaling, with_theta = scaling;
  with_type["type"] = "llama3";
  with_rope_type["rope_type"] = "llama3";
  with_theta["rope_type"] = "llama3";
  with_theta["rope_theta"] = 500000.0;
  for (const Json& changes :
       {Json{{"rope_scaling", with_type}, {"rope_theta", 500000}},
        Json{{"rope_scaling", with_rope_type}, {"rope_theta", 500000.0}},
        Json{{"rope_parameters", with_theta}},
        Json{{"rope_parameters", with_rope_type}, {"rope_theta", 500000.0}}}) {
    const auto config = parse_with(small_llama(), changes);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope_theta, 500000) << changes;
    EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kLlama3) << changes;
    EXPECT_EQ(config->rope_scaling.factor, 32) << changes;
  }
  const auto plain = parse_with(
      small_llama(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}});
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->rope_theta, 1e6);
  EXPECT_EQ(plain->rope_scaling.kind, RopeScaling::Kind::kNone);
}

TEST(ModelConfig, TheTypeHasTwoNames) {
  for (const char* name : {"dtype", "torch_dtype"}) {
    const auto config = parse_with(small_llama(), {{name, "float16"}});
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->type, ElementType::kFp16) << name;
  }
  expect_refused(small_llama(), {{"dtype", "float8_e4m3fn"}}, Code::kUnsupported, "float8_e4m3fn");
}

TEST(ModelConfig, FeaturesThatWouldChangeTheResultAreRefused) {
  const auto unsupported_llama = [](const Json& changes, const std::string& reason) {
    expect_refused(small_llama(), changes, Code::kUnsupported, reason);
  };
  unsupported_llama({{"architectures", {"GemmaForCausalLM"}}},
                    "its architecture is \"GemmaForCausalLM\"; kvlane knows LlamaForCausalLM");
  unsupported_llama({{"architectures", {"MixtralForCausalLM"}}, {"num_local_experts", 8}},
                    "mixture of experts (num_local_experts)");
  unsupported_llama({{"architectures", {"DeepseekV2ForCausalLM"}}, {"kv_lora_rank", 512}},
                    "multi-head latent attention (kv_lora_rank)");
  unsupported_llama(
      {{"architectures", {"DbrxForCausalLM"}}, {"ffn_config", {{"moe_num_experts", 16}}}},
      "mixture of experts (moe_num_experts)");
  unsupported_llama({{"architectures", {"MllamaForConditionalGeneration"}},
                     {"text_config", {{"cross_attention_layers", {3, 8}}}}},
                    "cross attention");
  EXPECT_TRUE(parse_with(small_llama(), {{"num_experts", nullptr}}).ok());
  unsupported_llama({{"is_encoder_decoder", true}}, "cross attention");
  unsupported_llama({{"hidden_act", "gelu"}}, "hidden_act is \"gelu\"");
  unsupported_llama({{"quantization_config", {{"bits", 4}}}}, "quantization_config");
  unsupported_llama({{"sliding_window", 1024}}, "sliding_window 1024");
  unsupported_llama({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  unsupported_llama({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
                    "rope_parameters.partial_rotary_factor");
  unsupported_llama({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}, "\"dynamic\"");
  unsupported_llama({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
                    "one RoPE for all layers");
  unsupported_llama({{"layer_types", {"full_attention", "sliding_attention"}}},
                    "sliding_attention");
  expect_refused(small_qwen3(),
                 {{"use_sliding_window", true}, {"sliding_window", 63}, {"max_window_layers", 1}},
                 Code::kUnsupported, "sliding_window is 63");
  const auto unsupported = [](Json base, const char* architecture, const Json& changes,
                              const std::string& reason) {
    base["architectures"] = {architecture};
    expect_refused(base, changes, Code::kUnsupported, reason);
  };
  unsupported(small_llama(), "FalconForCausalLM", {{"alibi", true}}, "alibi is true");
  unsupported(small_llama(), "FalconForCausalLM", {{"activation", "relu"}},
              "activation is \"relu\"");
  unsupported(small_llama(), "FalconForCausalLM",
              {{"new_decoder_architecture", true}, {"parallel_attn", false}},
              "parallel_attn false");
  for (const char* const name : {"do_layer_norm_before", "layer_norm_elementwise_affine"}) {
    unsupported(small_llama(), "OPTForCausalLM", {{name, false}}, std::string(name) + " is false");
  }
  unsupported(small_llama(), "OPTForCausalLM", {{"word_embed_proj_dim", 32}},
              "word_embed_proj_dim 32 is not hidden_size 64");
  unsupported(small_llama(), "OPTForCausalLM", {{"activation_function", "gelu"}},
              "activation_function is \"gelu\"");
}

TEST(ModelConfig, FamiliesDiffer) {
  const auto of = [](const char* architecture, const Json& changes) {
    Json json = small_llama();
    json["architectures"] = {architecture};
    const auto config = parse_with(json, changes);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? *config : ModelConfig();
  };
  const ModelConfig qwen2 = of("Qwen2ForCausalLM", {{"num_key_value_heads", 2}});
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_out_bias);
  EXPECT_EQ(qwen2.context, 32768);
  const ModelConfig mistral =
      of("MistralForCausalLM", {{"sliding_window", nullptr}, {"num_key_value_heads", 2}});
  EXPECT_EQ(mistral.context, 131072);
  const ModelConfig biased = of("LlamaForCausalLM", {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(biased.qkv_bias && biased.attention_out_bias && biased.ffn_bias);

  const ModelConfig falcon = of("FalconForCausalLM", Json::object());
  EXPECT_EQ(falcon.norm, NormKind::kLayer);
  EXPECT_EQ(falcon.activation, Activation::kGelu);
  EXPECT_EQ(falcon.ffn, 256);
  EXPECT_EQ(falcon.kv_heads, 1);
  EXPECT_TRUE(falcon.parallel && falcon.shared_norm && falcon.tied_embeddings);
  const ModelConfig falcon_new =
      of("FalconForCausalLM", {{"new_decoder_architecture", true}, {"num_kv_heads", 2}});
  EXPECT_EQ(falcon_new.kv_heads, 2);
  EXPECT_TRUE(falcon_new.parallel);
  EXPECT_FALSE(falcon_new.shared_norm);
  const ModelConfig falcon_old =
      of("FalconForCausalLM", {{"multi_query", false}, {"parallel_attn", false}, {"bias", true}});
  EXPECT_EQ(falcon_old.kv_heads, 4);
  EXPECT_FALSE(falcon_old.parallel);
  EXPECT_TRUE(falcon_old.qkv_bias && falcon_old.attention_out_bias && falcon_old.ffn_bias);

  const ModelConfig opt = of("OPTForCausalLM", {{"ffn_dim", 128}});
  EXPECT_EQ(opt.activation, Activation::kRelu);
  EXPECT_EQ(opt.learned_positions, 2050);
  EXPECT_EQ(opt.position_offset, 2);
  EXPECT_TRUE(opt.qkv_bias && opt.attention_out_bias && opt.ffn_bias && opt.tied_embeddings);
  EXPECT_EQ(opt.ffn, 128);
}

// Numbers of transformers' defaults, by hand.
TEST(ModelConfig, RopeForLongContextsHasItsFactors) {
  const auto scaling_of = [](const Json& rope) {
    const auto config = parse_with(small_llama(), {{"rope_scaling", rope}});
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config->rope_scaling : RopeScaling();
  };
  EXPECT_EQ(scaling_of({{"type", "linear"}, {"factor", 4}}).kind, RopeScaling::Kind::kLinear);
  const RopeScaling yarn =
      scaling_of({{"rope_type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 256}});
  EXPECT_EQ(yarn.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(yarn.original_max_position, 256);
  EXPECT_EQ(yarn.beta_fast, 32);
  EXPECT_NEAR(yarn.attention_factor, 1.20794, 1e-5);  // 0.1 ln 8 + 1
  const std::vector<double> ones(8, 1.0), twos(8, 2.0);
  const Json longrope = {{"type", "su"},
                         {"short_factor", ones},
                         {"long_factor", twos},
                         {"original_max_position_embeddings", 256}};
  const RopeScaling phi = scaling_of(longrope);
  EXPECT_EQ(phi.kind, RopeScaling::Kind::kLongRope);
  EXPECT_EQ(phi.long_factors, twos);
  EXPECT_NEAR(phi.attention_factor, 1.17260, 1e-5);  // sqrt(1 + ln 8 / ln 256)
  Json bad = longrope;
  bad["long_factor"] = {1.0, 2.0};
  expect_refused(small_llama(), {{"rope_scaling", bad}}, Code::kInvalidArgument,
                 "rope_scaling.long_factor is not a list of 8 numbers");
  bad["long_factor"] = std::vector<double>(8, -1.0);
  expect_refused(small_llama(), {{"rope_scaling", bad}}, Code::kInvalidArgument,
                 "rope_scaling.long_factor is not a list of numbers above zero");
  expect_refused(small_llama(), {{"rope_scaling", {{"type", "linear"}}}}, Code::kInvalidArgument,
                 "it has no rope_scaling.factor");
}

// As transformers has it: what stands outside of the scaling wins.
TEST(ModelConfig, TheContextBeforeScalingHasTwoPlaces) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const Json inside = {{"type", "yarn"}, {"factor", 2}, {kOriginal, 256}};
  const auto config = parse_with(small_llama(), {{"rope_scaling", inside}, {kOriginal, 512}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope_scaling.original_max_position, 512);
}

// Its positions go as far as scaling takes them, be that named or not.
TEST(ModelConfig, ScaledPositionsWidenTheContext) {
  const auto context_of = [](const Json& rope) {
    const auto config =
        parse_with(small_llama(), {{"max_position_embeddings", 1024}, {"rope_scaling", rope}});
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config->context : -1;
  };
  constexpr const char* kOriginal = "original_max_position_embeddings";
  EXPECT_EQ(context_of({{"type", "yarn"}, {"factor", 4}}), 4096);
  EXPECT_EQ(context_of({{"type", "yarn"}, {"factor", 4}, {kOriginal, 512}}), 2048);
  EXPECT_EQ(context_of({{"type", "yarn"}, {"factor", 4}, {kOriginal, 128}}), 1024);
  EXPECT_EQ(context_of({{"type", "linear"}, {"factor", 2.5}}), 2560);
  EXPECT_EQ(context_of({{"type", "linear"}, {"factor", 1e12}}), kContextMax);
}

TEST(ModelConfig, Phi3HasLongRopeAlone) {
  Json phi = small_llama();
  phi["architectures"] = {"Phi3ForCausalLM"};
  phi["eos_token_id"] = 2;
  phi["max_position_embeddings"] = 8192;
  const std::vector<double> ones(8, 1.0), twos(8, 2.0);
  for (const char* const type : {"longrope", "su", "yarn"}) {
    const auto config = parse_with(
        phi, {{"rope_scaling", {{"type", type}, {"short_factor", ones}, {"long_factor", twos}}}});
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kLongRope);
    EXPECT_EQ(config->rope_scaling.original_max_position, 4096);
    EXPECT_EQ(config->context, 8192);
  }
  expect_refused(phi, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, Code::kUnsupported,
                 "\"linear\"; this family has longrope alone");
}

TEST(ModelConfig, WindowsAreThoseOfTheFamily) {
  const auto window_of = [](Json base, const char* architecture, const Json& changes) {
    base["architectures"] = {architecture};
    const auto config = parse_with(base, changes);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? std::pair(config->window_of(0), config->window_of(config->layers - 1))
                       : std::pair(-1, -1);
  };
  using Windows = std::pair<int, int>;
  // What is absent is 4,096 tokens there, null is none.
  EXPECT_EQ(window_of(small_llama(), "MistralForCausalLM", {{"num_key_value_heads", 4}}),
            Windows(4096, 4096));
  EXPECT_EQ(
      window_of(small_llama(), "Phi3ForCausalLM", {{"sliding_window", 2047}, {"eos_token_id", 2}}),
      Windows(2047, 2047));
  EXPECT_EQ(window_of(small_llama(), "Phi3ForCausalLM",
                      {{"sliding_window", nullptr}, {"eos_token_id", 2}}),
            Windows(0, 0));
  EXPECT_EQ(window_of(small_qwen3(), "Qwen3ForCausalLM",
                      {{"use_sliding_window", true}, {"max_window_layers", 0}}),
            Windows(4096, 4096));
  EXPECT_EQ(
      window_of(
          small_qwen3(), "Qwen3ForCausalLM",
          {{"use_sliding_window", true}, {"max_window_layers", 0}, {"sliding_window", nullptr}}),
      Windows(0, 0));
  const Json used = {
      {"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}};
  EXPECT_EQ(window_of(small_qwen3(), "Qwen3ForCausalLM", used), Windows(0, 64));
  Json typed = used;
  typed["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(window_of(small_qwen3(), "Qwen3ForCausalLM", typed), Windows(0, 64));
  typed["layer_types"] = {"sliding_attention", "sliding_attention"};
  expect_refused(small_qwen3(), typed, Code::kUnsupported, "say none");
}

TEST(ModelConfig, WindowsThatDoNothingAreFine) {
  EXPECT_TRUE(parse_with(small_qwen3(), {{"sliding_window", 64}}).ok());
  EXPECT_TRUE(
      parse_with(small_qwen3(), {{"use_sliding_window", true}, {"sliding_window", 64}}).ok());
  EXPECT_TRUE(parse_with(small_llama(), {{"sliding_window", 2048}}).ok());
  EXPECT_TRUE(parse_with(small_llama(), {{"layer_types", {"full_attention"}}}).ok());
}

TEST(ModelConfig, ImpossibleValuesAreNamed) {
  const auto invalid = [](const Json& changes, const std::string& reason) {
    expect_refused(small_llama(), changes, Code::kInvalidArgument, reason);
  };
  for (const char* name : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                           "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    invalid({{name, 0}}, std::string(name) + " is 0; kvlane takes 1 to ");
    invalid({{name, -5}}, std::string(name) + " is -5");
    invalid({{name, std::uint64_t{1} << 63}}, std::string(name) + " is 9223372036854775808");
    invalid({{name, 1.5}}, std::string(name) + " is not a whole number");
    invalid({{name, "8"}}, std::string(name) + " is not a whole number");
  }
  invalid({{"num_key_value_heads", 3}}, "not a multiple of num_key_value_heads 3");
  invalid({{"head_dim", 15}}, "head_dim is 15");
  invalid({{"hidden_size", 4}}, "head_dim is 1");
  invalid({{"rms_norm_eps", 0}}, "rms_norm_eps is 0");
  invalid({{"rms_norm_eps", "small"}}, "rms_norm_eps is not a number");
  invalid({{"tie_word_embeddings", 1}}, "tie_word_embeddings is not true or false");
  invalid({{"hidden_act", 1}}, "hidden_act is not a string");
  invalid({{"rope_theta", -1}}, "rope_theta is -1");
  invalid({{"rope_scaling", 2}}, "rope_scaling is no object");
  invalid({{"bos_token_id", 96}}, "bos_token_id 96 lies outside the vocabulary of 96");
  invalid({{"eos_token_id", {1, -1}}}, "eos_token_id -1 lies outside");
  invalid({{"eos_token_id", "</s>"}}, "eos_token_id is not a token id");
  invalid({{"eos_token_id", std::vector<int>(65, 1)}}, "65 ids");
}

TEST(ModelConfig, Llama3RopeNeedsItsFactors) {
  const Json good = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  const auto config = parse_with(small_llama(), {{"rope_scaling", good}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope_scaling.original_max_position, 2048);  // the context
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json bad = good;
    bad.erase(name);
    expect_refused(small_llama(), {{"rope_scaling", bad}}, Code::kInvalidArgument,
                   std::string("it has no rope_scaling.") + name);
    bad[name] = 0;
    expect_refused(small_llama(), {{"rope_scaling", bad}}, Code::kInvalidArgument,
                   std::string("rope_scaling.") + name + " is 0");
  }
  Json flat = good;
  flat["high_freq_factor"] = 1;
  expect_refused(small_llama(), {{"rope_scaling", flat}}, Code::kInvalidArgument,
                 "is not above low_freq_factor");
}

TEST(ModelConfig, TextThatIsNoConfigurationIsAnError) {
  for (const char* text : {"", "{", "[]", "null", "{} {}", "\xff"}) {
    EXPECT_EQ(parse_model_config(text).status().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_EQ(parse_model_config(std::string(1 << 20, '[')).status().message(),
            "it nests deeper than 32 levels");
  for (const char* name : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                           "intermediate_size", "vocab_size"}) {
    Json json = small_llama();
    json.erase(name);
    expect_refused(json, Json::object(), Code::kInvalidArgument, std::string("it has no ") + name);
  }
}

TEST(GenerationConfig, ItsEosWins) {
  auto config = parse_with(small_llama(), Json::object());
  ASSERT_TRUE(config.ok());
  ASSERT_TRUE(apply_generation_config(R"({"temperature":0.6})", *config).ok());
  EXPECT_THAT(config->eos, ElementsAre(2));
  ASSERT_TRUE(apply_generation_config(R"({"eos_token_id":[3,4]})", *config).ok());
  EXPECT_THAT(config->eos, ElementsAre(3, 4));
  ASSERT_TRUE(apply_generation_config(R"({"eos_token_id":5})", *config).ok());
  EXPECT_THAT(config->eos, ElementsAre(5));
  EXPECT_THAT(apply_generation_config(R"({"eos_token_id":[500]})", *config).message(),
              HasSubstr("eos_token_id 500 lies outside"));
  EXPECT_FALSE(apply_generation_config("[", *config).ok());
  EXPECT_THAT(config->eos, ElementsAre(5));
}

std::uint64_t parameters(const ModelConfig& config) {
  std::uint64_t sum = 0;
  for (const TensorSpec& tensor : model_tensors(config)) sum += tensor.elements();
  return sum;
}

TEST(ModelTensors, CountsMatchThePublishedModels) {
  auto llama = parse_model_config(config_text("llama-3.1-8b.json"));
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ(parameters(*llama), 8030261248U);
  EXPECT_EQ(model_tensors(*llama).size(), 3U + 32U * 9U);
  const auto qwen3 = parse_model_config(config_text("qwen3-0.6b.json"));
  ASSERT_TRUE(qwen3.ok());
  EXPECT_EQ(parameters(*qwen3), 596049920U);
  const auto count = [](const char* name) {
    const auto config = parse_model_config(config_text(name));
    EXPECT_TRUE(config.ok()) << name << ": " << config.status().message();
    return config.ok() ? parameters(*config) : 0;
  };
  EXPECT_EQ(count("mistral-7b-v0.3.json"), 7248023552U);
  EXPECT_EQ(count("qwen2.5-0.5b.json"), 494032768U);
  EXPECT_EQ(count("phi-3-medium-128k.json"), 13960238080U);
  EXPECT_EQ(count("opt-30b.json"), 29974540288U);
  EXPECT_EQ(count("falcon-180b.json"), 178557088768U);
}

}  // namespace
}  // namespace kvlane
