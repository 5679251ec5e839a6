// config.json: real files, transformers' defaults, both spellings of RoPE, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "model/layout.h"

namespace kvlane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string fixture(const std::string& name) {
  const auto text =
      read_text_file(std::string(KVLANE_SOURCE_DIR) + "/tests/fixtures/configs/" + name, 1 << 20);
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
  const auto config = parse_model_config(fixture("llama-3.1-8b.json"));
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

TEST(ModelConfig, ReadsQwen3) {
  const auto config = parse_model_config(fixture("qwen3-0.6b.json"));
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
  unsupported_llama({{"architectures", {"MistralForCausalLM"}}}, "MistralForCausalLM");
  unsupported_llama({{"attention_bias", true}}, "attention_bias");
  unsupported_llama({{"mlp_bias", true}}, "mlp_bias");
  unsupported_llama({{"hidden_act", "gelu"}}, "hidden_act is \"gelu\"");
  unsupported_llama({{"quantization_config", {{"bits", 4}}}}, "quantization_config");
  unsupported_llama({{"sliding_window", 1024}}, "sliding_window 1024");
  unsupported_llama({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  unsupported_llama({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
                    "rope_parameters.partial_rotary_factor");
  unsupported_llama({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}, "\"linear\"");
  unsupported_llama({{"rope_parameters", {{"rope_type", "yarn"}}}}, "\"yarn\"");
  unsupported_llama({{"layer_types", {"full_attention", "sliding_attention"}}},
                    "sliding_attention");
  expect_refused(small_qwen3(),
                 {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}},
                 Code::kUnsupported, "sliding_window 64");
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
  auto llama = parse_model_config(fixture("llama-3.1-8b.json"));
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ(parameters(*llama), 8030261248U);
  EXPECT_EQ(model_tensors(*llama).size(), 3U + 32U * 9U);
  const auto qwen3 = parse_model_config(fixture("qwen3-0.6b.json"));
  ASSERT_TRUE(qwen3.ok());
  EXPECT_EQ(parameters(*qwen3), 596049920U);
}

}  // namespace
}  // namespace kvlane
