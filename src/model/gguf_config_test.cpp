// What entries and tensors of a GGUF file mean for the configuration, and which are refused.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "model/gguf_fixture.h"
#include "model/gguf_tensors.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<double>;

// A fixture whose entries are changed.
class Changed {
 public:
  explicit Changed(const std::string& name) : bytes_(gguf_fixture::read_gguf(name)) {
    Result<GgufFile> file = parse_gguf(as_byte_view(bytes_));
    EXPECT_TRUE(file.ok()) << file.status().message();
    if (file.ok()) file_ = std::move(*file);
  }

  GgufFile& file() { return file_; }
  Changed& set(const std::string& name, GgufValue value) {
    file_.metadata.insert_or_assign(name, std::move(value));
    return *this;
  }
  Changed& drop(const std::string& name) {
    file_.metadata.erase(name);
    file_.tensors.erase(name);
    return *this;
  }
  Changed& factors(const std::string& name, std::vector<float> values) {
    floats_[name] = std::move(values);
    const std::vector<float>& kept = floats_[name];
    file_.tensors[name] = {
        GgufType::kF32, {static_cast<std::int64_t>(kept.size())}, std::as_bytes(std::span(kept))};
    return *this;
  }

  ModelConfig config() {
    Result<ModelConfig> config = gguf_config(file_);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? *config : ModelConfig();
  }
  void expect_error(Code code, const std::string& words) {
    const Result<ModelConfig> config = gguf_config(file_);
    ASSERT_FALSE(config.ok()) << words;
    EXPECT_EQ(config.status().code(), code) << config.status().message();
    EXPECT_THAT(config.status().message(), HasSubstr(words));
  }

 private:
  std::string bytes_;
  std::map<std::string, std::vector<float>> floats_;
  GgufFile file_;
};

TEST(GgufConfigTest, EntriesThatAreNotWhatTheyShouldBeAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    const char* file;
    const char* name;
    GgufValue value;
    const char* words;
  } cases[] = {
      {"llama", "llama.block_count", std::string_view("2"), "'llama.block_count' is no number"},
      {"llama", "llama.block_count", 1.5, "'llama.block_count' is no whole number"},
      {"llama", "llama.embedding_length", 1e12, "'llama.embedding_length' is no whole number"},
      {"llama", "llama.attention.head_count", Numbers{1, 2},
       "'llama.attention.head_count' is no number"},
      {"llama", "llama.attention.layer_norm_rms_epsilon", nan, "epsilon' is not finite"},
      {"llama", "llama.rope.freq_base", HUGE_VAL, "'llama.rope.freq_base' is not finite"},
      {"llama", "llama.rope.scaling.type", 1.0, "'llama.rope.scaling.type' is no text"},
      {"llama", "llama.attention.sliding_window", true,
       "'llama.attention.sliding_window' is no number"},
      {"llama", "llama.attention.sliding_window", 70.5,
       "'llama.attention.sliding_window' is no whole number"},
      {"llama", "llama.attention.sliding_window", -70.0,
       "'llama.attention.sliding_window' is no whole number"},
      {"llama", "tokenizer.ggml.bos_token_id", std::string_view("1"),
       "'tokenizer.ggml.bos_token_id' is no number"},
      {"llama", "tokenizer.ggml.eos_token_id", Numbers{2},
       "'tokenizer.ggml.eos_token_id' is no number"},
      {"falcon", "falcon.attention.layer_norm_epsilon", nan, "epsilon' is not finite"},
      {"falcon", "falcon.tensor_data_layout", 1.0, "'falcon.tensor_data_layout' is no text"},
      {"phi3", "phi3.rope.scaling.attn_factor", std::string_view("1"), "factor' is no number"},
      {"yarn", "llama.rope.scaling.original_context_length", 64.5,
       "'llama.rope.scaling.original_context_length' is no whole number"},
  };
  for (const auto& bad : cases) {
    Changed(bad.file).set(bad.name, bad.value).expect_error(Code::kCorrupt, bad.words);
  }
  Changed("phi3").drop("phi3.block_count").expect_error(Code::kCorrupt, "no 'phi3.block_count'");
  Changed("falcon")
      .drop("falcon.feed_forward_length")
      .expect_error(Code::kCorrupt, "no 'falcon.feed_forward_length'");
}

TEST(GgufConfigTest, ArchitecturesAndFeaturesAreRefusedByName) {
  Changed("llama")
      .set("general.architecture", std::string_view("opt"))
      .expect_error(Code::kUnsupported, "\"opt\"; kvlane reads llama, qwen2, qwen3, phi3, falcon");
  const std::pair<const char*, const char*> features[] = {
      {"expert_count", "'deepseek2.expert_count' says that it has experts"},
      {"attention.kv_lora_rank", "says that it has multi-head latent attention"},
  };
  for (const auto& [name, words] : features) {
    Changed("llama")
        .set("general.architecture", std::string_view("deepseek2"))
        .set("deepseek2." + std::string(name), 8.0)
        .expect_error(Code::kUnsupported, words);
  }
  Changed("llama").drop("general.architecture").expect_error(Code::kCorrupt, "architecture'");
  for (const char* const name : {"llama", "qwen2", "phi3", "falcon"}) {
    Changed file(name);
    file.set(std::string(name) + ".expert_count", 8.0)
        .expect_error(Code::kUnsupported, "expert_count' says that it has experts");
    file.set(std::string(name) + ".expert_count", 0.0)
        .set(std::string(name) + ".attention.value_length", 8.0)
        .expect_error(Code::kUnsupported, "other lengths for values or rotation");
  }
  Changed("phi3")
      .set("phi3.rope.dimension_count", 12.0)
      .expect_error(Code::kUnsupported, "other lengths for values or rotation");
  Changed("falcon")
      .set("falcon.tensor_data_layout", std::string_view("plain"))
      .expect_error(Code::kUnsupported, "'falcon.tensor_data_layout' is \"plain\"");
  Changed("falcon")
      .set("falcon.attention.key_length", 32.0)
      .expect_error(Code::kUnsupported, "its heads are not as long as the model is wide");
  EXPECT_EQ(Changed("falcon").drop("falcon.tensor_data_layout").config().kv_heads, 2);
}

TEST(GgufConfigTest, WindowsAreThoseOfTheFamily) {
  const std::string window = ".attention.sliding_window";
  for (const auto& [name, architecture] :
       {std::pair("llama", "MistralForCausalLM"), std::pair("phi3", "Phi3ForCausalLM"),
        std::pair("qwen2", "Qwen2ForCausalLM")}) {
    SCOPED_TRACE(name);
    Changed file(name);
    const ModelConfig all = file.set(name + window, 100.0).config();
    EXPECT_EQ(all.architecture, architecture);
    EXPECT_EQ(all.window, 100);
    EXPECT_EQ(all.windowed_first, 0);
    // Every layer by a list, or by its period; no layer likewise.
    EXPECT_EQ(file.set(name + window + "_pattern", Numbers{1, 1}).config().window, 100);
    EXPECT_EQ(file.set(name + window + "_pattern", 0.0).config().window, 100);
    EXPECT_EQ(file.set(name + window + "_pattern", Numbers{0, 0}).config().window, 0);
    EXPECT_EQ(file.set(name + window + "_pattern", 1.0).config().window, 0);
    file.set(name + window + "_pattern", Numbers{1, 0})
        .expect_error(Code::kUnsupported, "layers that others follow without one");
    file.set(name + window + "_pattern", 2.0)
        .expect_error(Code::kUnsupported, "layers that others follow without one");
    file.set(name + window + "_pattern", Numbers{1})
        .expect_error(Code::kCorrupt, "pattern' has 1 elements for 2 layers");
    file.set(name + window + "_pattern", std::string_view("all"))
        .expect_error(Code::kCorrupt, "pattern' is no number");
    file.drop(name + window + "_pattern")
        .set(name + window, 20.0)
        .expect_error(Code::kUnsupported, "sliding_window is 20; kvlane attends to 64");
    EXPECT_EQ(file.set(name + window, 0.0).config().window, 0);
  }
  // From a layer on is Qwen's alone.
  Changed qwen("qwen2");
  qwen.set("qwen2" + window, 100.0).set("qwen2" + window + "_pattern", Numbers{0, 1});
  EXPECT_EQ(qwen.config().windowed_first, 1);
  EXPECT_EQ(qwen.config().window, 100);
  Changed("llama")
      .set("llama" + window, 100.0)
      .set("llama" + window + "_pattern", Numbers{0, 1})
      .expect_error(Code::kUnsupported, "gives a window to some layers");
  Changed("falcon")
      .set("falcon" + window, 100.0)
      .expect_error(Code::kUnsupported, "says that it has a sliding window");
}

TEST(GgufConfigTest, AFactorWithoutATypeIsLinear) {
  using Kind = RopeScaling::Kind;
  Changed file("llama");
  EXPECT_EQ(file.config().rope_scaling.kind, Kind::kNone);
  EXPECT_EQ(file.set("llama.rope.scale_linear", 2.0).config().rope_scaling.factor, 2);
  file.set("llama.rope.scaling.factor", 4.0);
  EXPECT_EQ(file.config().rope_scaling.kind, Kind::kLinear);
  EXPECT_EQ(file.config().rope_scaling.factor, 4);
  file.set("llama.rope.scaling.type", std::string_view("linear"));
  EXPECT_EQ(file.config().rope_scaling.factor, 4);
  EXPECT_EQ(file.set("llama.rope.scaling.factor", 0.0).config().rope_scaling.kind, Kind::kNone);
  file.set("llama.rope.scaling.factor", -4.0)
      .expect_error(Code::kInvalidArgument, "rope_scaling.factor is -4");
  file.set("llama.rope.scaling.factor", 4.0)
      .set("llama.rope.scaling.type", std::string_view("none"));
  EXPECT_EQ(file.config().rope_scaling.kind, Kind::kNone);
  file.set("llama.rope.scaling.type", std::string_view("ntk"))
      .expect_error(Code::kUnsupported, "'llama.rope.scaling.type' is \"ntk\"");
  file.set("llama.rope.scaling.type", std::string_view("longrope"))
      .expect_error(Code::kCorrupt, "is longrope, and it has no 'rope_factors_long.weight'");
  Changed("llama")
      .set("llama.rope.scaling.attn_factor", 1.5)
      .expect_error(Code::kUnsupported, "attn_factor' is not 1, with neither");
  Changed("llama")
      .set("llama.rope.scaling.yarn_ext_factor", 1.0)
      .expect_error(Code::kUnsupported, "yarn_ext_factor' is above 0 without YaRN");
  EXPECT_EQ(Changed("llama").set("llama.rope.scaling.yarn_ext_factor", -1.0).config().window, 0);
}

TEST(GgufConfigTest, YarnHasWhatTransformersComputes) {
  const std::string scaling = "llama.rope.scaling.";
  const RopeScaling plain = Changed("yarn").config().rope_scaling;
  EXPECT_EQ(plain.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(plain.factor, 8);
  EXPECT_EQ(plain.original_max_position, 64);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_TRUE(plain.truncate);
  const double own = 0.1 * std::log(8.0) + 1;
  EXPECT_DOUBLE_EQ(plain.attention_factor, own);

  Changed file("yarn");
  file.set(scaling + "yarn_beta_fast", 16.0).set(scaling + "yarn_beta_slow", 2.0);
  EXPECT_EQ(file.config().rope_scaling.beta_fast, 16);
  EXPECT_EQ(file.config().rope_scaling.beta_slow, 2);
  // One multiplies YaRN's own factor, the other stands for it.
  file.set(scaling + "attn_factor", 0.5);
  EXPECT_DOUBLE_EQ(file.config().rope_scaling.attention_factor, 0.5 * own);
  file.set(scaling + "yarn_attn_factor", 0.75)
      .expect_error(Code::kUnsupported, "and 'llama.rope.scaling.yarn_attn_factor'; kvlane reads");
  file.set(scaling + "attn_factor", 1.0);
  EXPECT_EQ(file.config().rope_scaling.attention_factor, 0.75);
  file.set(scaling + "yarn_attn_factor", 0.0)
      .expect_error(Code::kInvalidArgument, "attention_factor is 0");
  file.drop(scaling + "yarn_attn_factor");
  for (const double whole : {1.0, -1.0}) {
    EXPECT_EQ(file.set(scaling + "yarn_ext_factor", whole).config().rope_scaling.factor, 8);
  }
  file.set(scaling + "yarn_ext_factor", 0.5)
      .expect_error(Code::kUnsupported, "'llama.rope.scaling.yarn_ext_factor' is not 1");
  file.drop(scaling + "yarn_ext_factor")
      .set(scaling + "yarn_log_multiplier", 0.1)
      .expect_error(Code::kUnsupported, "'llama.rope.scaling.yarn_log_multiplier' is not 0");
  file.set(scaling + "yarn_log_multiplier", 0.0).drop(scaling + "original_context_length");
  EXPECT_EQ(file.config().rope_scaling.original_max_position, 512);
  file.set(scaling + "original_context_length", 0.0)
      .expect_error(Code::kInvalidArgument, "original_max_position_embeddings is 0");
  file.drop(scaling + "original_context_length")
      .set(scaling + "yarn_beta_fast", -1.0)
      .expect_error(Code::kInvalidArgument, "rope_scaling.beta_fast is -1");
}

TEST(GgufConfigTest, FactorsOfRotationAreCheckedTensors) {
  const std::string longer = "rope_factors_long.weight", shorter = "rope_factors_short.weight";
  const RopeScaling scaling = Changed("phi3").config().rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::kLongRope);
  EXPECT_EQ(scaling.long_factors.back(), 14);
  EXPECT_FLOAT_EQ(static_cast<float>(scaling.short_factors.back()), 1.6F);
  EXPECT_NEAR(scaling.attention_factor, std::sqrt(1 + std::log(16.0) / std::log(32.0)), 1e-7);
  EXPECT_EQ(
      Changed("phi3").drop("phi3.rope.scaling.attn_factor").config().rope_scaling.attention_factor,
      1);
  Changed("phi3").drop(shorter).expect_error(Code::kCorrupt, "no 'rope_factors_short.weight'");
  Changed("phi3").drop(longer).expect_error(Code::kCorrupt, "no 'rope_factors_long.weight'");
  const RopeScaling none = Changed("phi3")
                               .drop(longer)
                               .drop(shorter)
                               .drop("phi3.rope.scaling.attn_factor")
                               .config()
                               .rope_scaling;
  EXPECT_EQ(none.kind, RopeScaling::Kind::kNone);
  Changed("phi3")
      .factors(longer, {1, 2, 3})
      .expect_error(Code::kCorrupt, "'rope_factors_long.weight' is no list of 8 F32");
  Changed("phi3")
      .factors(shorter, {1, 2, 3, 4, 5, 6, 7, 0})
      .expect_error(Code::kCorrupt, "'rope_factors_short.weight' has a number that is not above");
  Changed("phi3")
      .factors(shorter, {1, 2, 3, 4, 5, 6, 7, std::numeric_limits<float>::infinity()})
      .expect_error(Code::kCorrupt, "'rope_factors_short.weight' has a number that is not above");
  Changed half("phi3");
  half.file().tensors.at(longer).type = GgufType::kF16;
  half.expect_error(Code::kCorrupt, "'rope_factors_long.weight' is no list of 8 F32");
  Changed("phi3")
      .factors("rope_freqs.weight", {1, 1, 1, 1, 1, 1, 1, 1})
      .expect_error(Code::kUnsupported, "'rope_freqs.weight' and factors of LongRoPE");
  Changed("llama31")
      .set("llama.rope.scaling.type", std::string_view("yarn"))
      .expect_error(Code::kUnsupported, "it has 'rope_freqs.weight' and");
  Changed("phi3")
      .set("phi3.rope.scaling.factor", 4.0)
      .expect_error(Code::kUnsupported, "it has 'rope_factors_long.weight' and");
  Changed said("phi3");
  said.set("phi3.rope.scaling.type", std::string_view("longrope"));
  EXPECT_EQ(said.config().rope_scaling.kind, RopeScaling::Kind::kLongRope);
}

TEST(GgufConfigTest, TensorsHaveAPlaceAndTheRowsOfTheirHeads) {
  const auto error_of = [](Changed& file) -> std::string {
    const ModelConfig config = file.config();
    const Result<GgufTensors> tensors = gguf_tensors(file.file(), config);
    return tensors.ok() ? std::string() : tensors.status().message();
  };
  for (const auto& [name, tensor] :
       {std::pair("phi3", "blk.0.attn_q.weight"), std::pair("falcon", "blk.0.ffn_gate.weight"),
        std::pair("falcon", "blk.0.attn_qkv.scale"), std::pair("llama", "blk.x.attn_q.weight"),
        std::pair("llama", "blk.0.attn_q_norm.weight"), std::pair("llama", "attn_q.weight")}) {
    Changed file(name);
    file.file().tensors[tensor] = file.file().tensors.at("token_embd.weight");
    EXPECT_THAT(error_of(file), HasSubstr(std::string("it has tensor '") + tensor + "'"));
  }
  Changed fewer("falcon");
  fewer.file().tensors.at("blk.0.attn_qkv.weight").shape[0] = 64;
  EXPECT_THAT(error_of(fewer), HasSubstr("'blk.0.attn_qkv.weight' has the shape [64, 64]"));
  // Whatever is there of a shape, a bias of coded rows is none.
  Changed coded("falcon-mqa");
  coded.file().tensors.at("blk.0.attn_qkv.weight").shape = {96 * 64};
  EXPECT_THAT(error_of(coded), HasSubstr("'blk.0.attn_qkv.weight' has the shape"));
}

}  // namespace
}  // namespace kvlane
