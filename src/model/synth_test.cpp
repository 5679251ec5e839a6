// Synthetic checkpoints: readable, reproducible, of the asked size, type and statistics.
// SPDX-License-Identifier: Apache-2.0
#include "model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "model/checkpoint.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kSmallConfig = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
  "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 1000,
  "max_position_embeddings": 256, "torch_dtype": "bfloat16", "tie_word_embeddings": false,
  "layer_types": ["full_attention", "full_attention", "full_attention"]})";

SynthOptions small_options() {
  SynthOptions options;
  options.config_json = kSmallConfig;
  return options;
}

Checkpoint open_or_die(const fs::path& directory) {
  Result<Checkpoint> checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) throw std::runtime_error(checkpoint.status().message());
  return std::move(*checkpoint);
}

std::vector<float> values_of(const TensorView& tensor) {
  const std::size_t element = element_bytes(tensor.type);
  std::vector<float> values(tensor.bytes.size() / element);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::byte* const at = tensor.bytes.data() + i * element;
    std::uint16_t half = 0;
    if (tensor.type == ElementType::kF32) {
      std::memcpy(&values[i], at, element);
    } else {
      std::memcpy(&half, at, element);
      values[i] = tensor.type == ElementType::kBf16 ? to_float(bf16{half}) : to_float(fp16{half});
    }
  }
  return values;
}

double deviation(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / count - sum / count * (sum / count));
}

std::string file_text(const fs::path& path) {
  const auto text = read_text_file(path, std::size_t{1} << 30);
  return text.ok() ? *text : text.status().message();
}

TEST(Synth, HasTheShapeTypeAndStatisticsAskedFor) {
  const TemporaryDirectory temporary;
  ASSERT_TRUE(write_synthetic_checkpoint(small_options(), temporary.path()).ok());
  const Checkpoint checkpoint = open_or_die(temporary.path());
  EXPECT_EQ(checkpoint.config().layers, 3);
  EXPECT_EQ(checkpoint.config().type, ElementType::kBf16);

  // 0.02 at a width of 4096 is 0.16 at 64; three layers damp what is added to the residual stream.
  const auto& tensors = checkpoint.tensors();
  const auto tensor_deviation = [&](const std::string& name) {
    return deviation(values_of(tensors.at(name)));
  };
  EXPECT_NEAR(tensor_deviation("model.embed_tokens.weight"), 0.16, 0.002);
  EXPECT_NEAR(tensor_deviation("model.layers.1.self_attn.q_proj.weight"), 0.16, 0.008);
  EXPECT_NEAR(tensor_deviation("model.layers.1.self_attn.o_proj.weight"), 0.16 / std::sqrt(6.0),
              0.004);
  EXPECT_NEAR(tensor_deviation("model.layers.2.mlp.down_proj.weight"),
              0.02 * std::sqrt(4096.0 / 160) / std::sqrt(6.0), 0.002);
  for (const float value : values_of(tensors.at("model.norm.weight"))) EXPECT_EQ(value, 1.0F);
}

TEST(Synth, SameSeedSameBytesOtherSeedOtherBytes) {
  const TemporaryDirectory temporary;
  SynthOptions options = small_options();
  ASSERT_TRUE(write_synthetic_checkpoint(options, temporary.path() / "a").ok());
  ASSERT_TRUE(write_synthetic_checkpoint(options, temporary.path() / "b").ok());
  options.seed = 1;
  ASSERT_TRUE(write_synthetic_checkpoint(options, temporary.path() / "c").ok());
  const std::string a = file_text(temporary.path() / "a/model.safetensors");
  EXPECT_EQ(a, file_text(temporary.path() / "b/model.safetensors"));
  EXPECT_NE(a, file_text(temporary.path() / "c/model.safetensors"));
  const auto identity = open_or_die(temporary.path() / "a").identity({});
  const auto other = open_or_die(temporary.path() / "c").identity({});
  ASSERT_TRUE(identity.ok() && other.ok());
  EXPECT_NE(*identity, *other);
}

TEST(Synth, TensorsAndLayersDiffer) {
  const TemporaryDirectory temporary;
  ASSERT_TRUE(write_synthetic_checkpoint(small_options(), temporary.path()).ok());
  const Checkpoint checkpoint = open_or_die(temporary.path());
  const auto k0 = values_of(checkpoint.tensors().at("model.layers.0.self_attn.k_proj.weight"));
  const auto v0 = values_of(checkpoint.tensors().at("model.layers.0.self_attn.v_proj.weight"));
  const auto k1 = values_of(checkpoint.tensors().at("model.layers.1.self_attn.k_proj.weight"));
  EXPECT_NE(k0, v0);
  EXPECT_NE(k0, k1);
}

TEST(Synth, LayersAndTypeReplaceTheConfigurations) {
  const TemporaryDirectory temporary;
  SynthOptions options = small_options();
  options.layers = 1;
  for (const ElementType type : {ElementType::kF32, ElementType::kFp16}) {
    options.type = type;
    const fs::path directory = temporary.path() / element_name(type);
    ASSERT_TRUE(write_synthetic_checkpoint(options, directory).ok());
    const Checkpoint checkpoint = open_or_die(directory);
    EXPECT_EQ(checkpoint.config().layers, 1);
    EXPECT_EQ(checkpoint.config().type, type);
    EXPECT_EQ(checkpoint.tensors().at("lm_head.weight").type, type);
    const auto json = nlohmann::json::parse(file_text(directory / "config.json"));
    EXPECT_EQ(json["num_hidden_layers"], 1);
    EXPECT_EQ(json["layer_types"].size(), 1U);
  }
}

// The same random numbers in three types: each is the nearest to the float.
TEST(Synth, TypesAreRoundingsOfTheSameNumbers) {
  const TemporaryDirectory temporary;
  SynthOptions options = small_options();
  std::vector<std::vector<float>> values;
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16, ElementType::kFp16}) {
    options.type = type;
    const fs::path directory = temporary.path() / element_name(type);
    ASSERT_TRUE(write_synthetic_checkpoint(options, directory).ok());
    const Checkpoint checkpoint = open_or_die(directory);
    values.push_back(values_of(checkpoint.tensors().at("model.embed_tokens.weight")));
  }
  for (std::size_t i = 0; i < values[0].size(); ++i) {
    const float exact = values[0][i];
    EXPECT_EQ(values[1][i], to_float(to_bf16(exact)));
    // Half a unit in the last of 11 binary digits, or half a subnormal step.
    const float bound = std::max(std::fabs(exact) * 0x1p-11F, 0x1p-25F);
    EXPECT_LE(std::fabs(values[2][i] - exact), bound) << exact;
  }
}

TEST(Synth, ATensorOfSeveralPiecesIsRandomThroughout) {
  const TemporaryDirectory temporary;
  SynthOptions options = small_options();
  auto json = nlohmann::json::parse(options.config_json);
  json["vocab_size"] = 40001;  // 40001 x 64 elements: two pieces and an uneven rest
  options.config_json = json.dump();
  options.layers = 1;
  std::uint64_t last = 0, total = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  ASSERT_TRUE(write_synthetic_checkpoint(options, temporary.path()).ok());
  EXPECT_EQ(last, total);
  const Checkpoint checkpoint = open_or_die(temporary.path());
  const auto values = values_of(checkpoint.tensors().at("model.embed_tokens.weight"));
  const std::vector<float> head(values.begin(), values.begin() + 4096);
  for (const std::size_t piece : {std::size_t{1} << 20, std::size_t{2} << 20}) {
    const std::vector<float> part(values.begin() + piece, values.begin() + piece + 4096);
    EXPECT_NE(part, head);
    EXPECT_NEAR(deviation(part), 0.16, 0.01);
  }
  EXPECT_NEAR(deviation({values.end() - 4096, values.end()}), 0.16, 0.01);
}

TEST(Synth, CopiesATokenizer) {
  const TemporaryDirectory temporary;
  const fs::path source = temporary.path() / "source";
  fs::create_directories(source);
  SynthOptions options = small_options();
  options.tokenizer_directory = source;
  const Status missing = write_synthetic_checkpoint(options, temporary.path() / "a");
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("tokenizer.json"));

  ASSERT_TRUE(write_file(source / "tokenizer.json", as_byte_view("{\"a\":1}")).ok());
  ASSERT_TRUE(write_file(source / "chat_template.jinja", as_byte_view("{{ x }}")).ok());
  ASSERT_TRUE(write_file(source / "generation_config.json", as_byte_view("{}")).ok());
  ASSERT_TRUE(write_synthetic_checkpoint(options, temporary.path() / "b").ok());
  EXPECT_EQ(file_text(temporary.path() / "b/tokenizer.json"), "{\"a\":1}");
  EXPECT_EQ(file_text(temporary.path() / "b/chat_template.jinja"), "{{ x }}");
  EXPECT_FALSE(fs::exists(temporary.path() / "b/generation_config.json"));
}

TEST(Synth, NeverOverwritesACheckpoint) {
  const TemporaryDirectory temporary;
  ASSERT_TRUE(write_file(temporary.path() / "config.json", as_byte_view("mine")).ok());
  const Status status = write_synthetic_checkpoint(small_options(), temporary.path());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("already holds a config.json"));
  EXPECT_EQ(file_text(temporary.path() / "config.json"), "mine");
  EXPECT_FALSE(fs::exists(temporary.path() / "model.safetensors"));
}

TEST(Synth, BadOptionsAreNamedAndLeaveNothingBehind) {
  const TemporaryDirectory temporary;
  const fs::path directory = temporary.path() / "out";
  SynthOptions options = small_options();
  options.layers = -1;
  EXPECT_THAT(write_synthetic_checkpoint(options, directory).message(),
              HasSubstr("num_hidden_layers is -1"));
  options = small_options();
  options.config_json = "{}";
  EXPECT_EQ(write_synthetic_checkpoint(options, directory).code(), Code::kUnsupported);
  options.config_json = "{";
  EXPECT_THAT(write_synthetic_checkpoint(options, directory).message(),
              HasSubstr("not valid JSON"));
  auto json = nlohmann::json::parse(kSmallConfig);
  json["initializer_range"] = 0;
  options.config_json = json.dump();
  EXPECT_THAT(write_synthetic_checkpoint(options, directory).message(),
              HasSubstr("initializer_range is 0"));
  EXPECT_FALSE(fs::exists(directory));

  ASSERT_TRUE(write_file(directory, as_byte_view("a file")).ok());
  EXPECT_THAT(write_synthetic_checkpoint(small_options(), directory).message(),
              HasSubstr("cannot create"));
}

TEST(Synth, AModelThatDoesNotFitTheDiskIsRefusedAtOnce) {
  const TemporaryDirectory temporary;
  SynthOptions options = small_options();
  auto json = nlohmann::json::parse(kSmallConfig);
  json["hidden_size"] = 32768;
  json["intermediate_size"] = 1 << 18;
  json["num_hidden_layers"] = 512;
  json["layer_types"] = nullptr;
  json["head_dim"] = 512;
  options.config_json = json.dump();
  const Status status = write_synthetic_checkpoint(options, temporary.path());
  EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("free"));
  EXPECT_TRUE(fs::is_empty(temporary.path()));
}

}  // namespace
}  // namespace kvlane
