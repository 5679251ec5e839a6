// Checkpoint directories: single and sharded, the errors of broken ones, and identity.
// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "base/test_paths.h"
#include "crypto/sha256.h"
#include "model/describe.h"
#include "model/layout.h"
#include "model/model.h"
#include "model/synth.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A small checkpoint on disk, to be broken in one way per test.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SynthOptions options;
    options.config_json = R"({
      "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2,
      "vocab_size": 96, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "dtype": "bfloat16",
      "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
      "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": false})";
    const Status written = write_synthetic_checkpoint(options, directory());
    ASSERT_TRUE(written.ok()) << written.message();
  }

  const fs::path& directory() const { return temporary_.path(); }
  std::string read(const std::string& name) const {
    const auto text = read_text_file(directory() / name, std::size_t{1} << 30);
    return text.ok() ? *text : text.status().message();
  }
  void write(const std::string& name, const std::string& text) const {
    ASSERT_TRUE(write_file(directory() / name, as_byte_view(text)).ok());
  }
  void change_config(const Json& changes) const {
    Json json = Json::parse(read("config.json"));
    json.update(changes);
    write("config.json", json.dump());
  }

  // The tensors of model.safetensors, to be written again in another way.
  struct Tensor {
    TensorSpec spec;
    std::string data;
  };
  std::vector<Tensor> read_tensors() const {
    const std::string file = read("model.safetensors");
    const auto views = parse_safetensors(as_byte_view(file));
    std::vector<Tensor> tensors;
    for (const auto& [name, view] : *views) {
      tensors.push_back({{name, view.type, view.shape}, std::string(as_text(view.bytes))});
    }
    return tensors;
  }
  void write_tensors(const std::string& name, const std::vector<Tensor>& tensors) const {
    std::vector<TensorSpec> specs;
    std::string data;
    for (const Tensor& tensor : tensors) {
      specs.push_back(tensor.spec);
      data += tensor.data;
    }
    write(name, std::string(as_text(build_safetensors_header(specs))) + data);
  }

  // Splits model.safetensors into two shards with an index, whose weight_map is returned.
  Json shard() const {
    const std::vector<Tensor> tensors = read_tensors();
    const auto middle = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() / 2);
    write_tensors("a.safetensors", {tensors.begin(), middle});
    write_tensors("b.safetensors", {middle, tensors.end()});
    Json map;
    for (auto at = tensors.begin(); at != tensors.end(); ++at) {
      map[at->spec.name] = at < middle ? "a.safetensors" : "b.safetensors";
    }
    fs::remove(directory() / "model.safetensors");
    write_index(map);
    return map;
  }
  void write_index(const Json& weight_map) const {
    write("model.safetensors.index.json",
          Json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  }

  std::string identity_hex() const {
    const auto checkpoint = Checkpoint::open(directory());
    if (!checkpoint.ok()) return checkpoint.status().message();
    const auto identity = checkpoint->identity({});
    return identity.ok() ? to_hex(*identity) : identity.status().message();
  }

  void expect_error(Code code, const std::vector<std::string>& parts) const {
    const auto checkpoint = Checkpoint::open(directory());
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.status().code(), code) << checkpoint.status().message();
    for (const std::string& part : parts) {
      EXPECT_THAT(checkpoint.status().message(), HasSubstr(part));
    }
  }

 private:
  TemporaryDirectory temporary_;
};

TEST_F(CheckpointTest, OpensASingleFile) {
  const auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->config().architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(checkpoint->tensors().size(), model_tensors(checkpoint->config()).size());
  EXPECT_EQ(checkpoint->shards().size(), 1U);
  const auto query = checkpoint->tensor("model.layers.1.self_attn.q_proj.weight", {64, 32});
  ASSERT_TRUE(query.ok());
  EXPECT_EQ(query->bytes.size(), 64U * 32 * 2);
  EXPECT_EQ(checkpoint->tensor("model.norm.weight", {33}).status().code(), Code::kCorrupt);
}

TEST_F(CheckpointTest, ReleasedBytesCanBeReadAgain) {
  const auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok());
  const auto tensor = checkpoint->tensor("model.embed_tokens.weight", {96, 32});
  ASSERT_TRUE(tensor.ok());
  const std::string before(as_text(tensor->bytes));
  checkpoint->release(*tensor);
  EXPECT_EQ(as_text(tensor->bytes), before);
}

TEST_F(CheckpointTest, ViewsSurviveAMove) {
  auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok());
  const TensorView view = checkpoint->tensors().at("model.norm.weight");
  const Checkpoint moved = std::move(*checkpoint);
  EXPECT_EQ(moved.tensors().at("model.norm.weight").bytes.data(), view.bytes.data());
  EXPECT_EQ(std::to_integer<int>(view.bytes[1]), 0x3f);  // 1.0 in bfloat16
}

TEST_F(CheckpointTest, ShardsGiveTheSameTensorsAndIdentity) {
  const std::string single = identity_hex();
  shard();
  const auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  ASSERT_EQ(checkpoint->shards().size(), 2U);
  EXPECT_EQ(checkpoint->shards()[1].name, "b.safetensors");
  EXPECT_EQ(identity_hex(), single);
}

TEST_F(CheckpointTest, GenerationConfigDecidesWhatEndsAnAnswer) {
  write("generation_config.json", R"({"eos_token_id": [2, 7]})");
  const auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT(checkpoint->config().eos, ElementsAre(2, 7));
  write("generation_config.json", R"({"eos_token_id": 700})");
  expect_error(Code::kInvalidArgument, {"generation_config.json", "eos_token_id 700"});
}

TEST_F(CheckpointTest, MissingFilesAreNamed) {
  EXPECT_EQ(Checkpoint::open(directory() / "nowhere").status().code(), Code::kNotFound);
  EXPECT_EQ(Checkpoint::open(directory() / "config.json").status().code(), Code::kNotFound);
  fs::remove(directory() / "model.safetensors");
  expect_error(Code::kNotFound, {"neither model.safetensors nor model.safetensors.index.json"});
  fs::remove(directory() / "config.json");
  expect_error(Code::kNotFound, {"config.json"});
}

TEST_F(CheckpointTest, ABadConfigurationIsNamedWithItsFile) {
  change_config({{"hidden_act", "gelu"}});
  expect_error(Code::kUnsupported, {"config.json: hidden_act"});
  write("config.json", std::string((1 << 20) + 1, ' '));
  expect_error(Code::kInvalidArgument, {"config.json has 1048577 bytes"});
}

TEST_F(CheckpointTest, EveryKindOfTruncationIsAnError) {
  const fs::path weights = directory() / "model.safetensors";
  const auto whole = fs::file_size(weights);
  for (const std::uintmax_t bytes :
       {whole - 1, whole / 2, std::uintmax_t{100}, std::uintmax_t{7}, std::uintmax_t{0}}) {
    fs::resize_file(weights, bytes);
    expect_error(Code::kCorrupt, {"model.safetensors: "});
  }
}

TEST_F(CheckpointTest, AMissingTensorIsNamed) {
  auto tensors = read_tensors();
  std::erase_if(tensors, [](const Tensor& tensor) {
    return tensor.spec.name == "model.layers.1.self_attn.k_norm.weight";
  });
  write_tensors("model.safetensors", tensors);
  expect_error(Code::kCorrupt, {"no tensor \"model.layers.1.self_attn.k_norm.weight\""});
}

TEST_F(CheckpointTest, AnUntiedModelNeedsItsOutputProjection) {
  auto tensors = read_tensors();
  std::erase_if(tensors, [](const Tensor& tensor) { return tensor.spec.name == "lm_head.weight"; });
  write_tensors("model.safetensors", tensors);
  expect_error(Code::kCorrupt, {"no tensor \"lm_head.weight\"", "tie_word_embeddings"});
  change_config({{"tie_word_embeddings", true}});
  EXPECT_TRUE(Checkpoint::open(directory()).ok());
  std::erase_if(tensors, [](const Tensor& tensor) {
    return tensor.spec.name == "model.embed_tokens.weight";
  });
  write_tensors("model.safetensors", tensors);
  expect_error(Code::kCorrupt, {"no tensor \"model.embed_tokens.weight\""});
}

TEST_F(CheckpointTest, AWrongShapeIsNamedWithFileAndTensor) {
  change_config({{"intermediate_size", 40}});
  expect_error(Code::kCorrupt, {"model.safetensors: tensor \"model.layers.0.mlp.gate_proj.weight\"",
                                "[48, 32] where config.json asks for [40, 32]"});
}

TEST_F(CheckpointTest, TensorsWithWorkThatWouldBeLeftOutAreRefused) {
  const auto tensors = read_tensors();
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias",
                           "model.layers.1.mlp.extra.weight", "lm_head.bias"}) {
    auto with_extra = tensors;
    with_extra.push_back({{name, ElementType::kBf16, {1}}, "ab"});
    write_tensors("model.safetensors", with_extra);
    expect_error(Code::kUnsupported, {"model.safetensors", name, "Qwen3ForCausalLM"});
  }
}

TEST_F(CheckpointTest, HarmlessExtraTensorsStayAndDoNotChangeTheIdentity) {
  const std::string before = identity_hex();
  auto tensors = read_tensors();
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq",
                           "model.layers.2.mlp.up_proj.weight", "score.weight"}) {
    tensors.push_back({{name, ElementType::kBf16, {1}}, "ab"});
  }
  write_tensors("model.safetensors", tensors);
  EXPECT_EQ(identity_hex(), before);
}

TEST_F(CheckpointTest, TheStoredTypeIsTheTruth) {
  change_config({{"dtype", "float32"}});
  const auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->config().type, ElementType::kBf16);
}

TEST_F(CheckpointTest, ABadIndexIsNamed) {
  const Json good = shard();
  for (const char* text : {"", "[]", "{}", R"({"weight_map": []})"}) {
    write("model.safetensors.index.json", text);
    expect_error(Code::kCorrupt, {"model.safetensors.index.json: "});
  }
  write("model.safetensors.index.json", std::string(std::size_t{1} << 20, '['));
  expect_error(Code::kCorrupt, {"model.safetensors.index.json: it nests deeper"});
  for (const char* name : {"", "../a.safetensors", "/etc/passwd", ".hidden", "x/y", "x\\y"}) {
    Json map = good;
    map["model.norm.weight"] = name;
    write_index(map);
    expect_error(Code::kCorrupt, {"\"model.norm.weight\" no plain file name"});
  }
  Json map = good;
  map["model.norm.weight"] = 3;
  write_index(map);
  expect_error(Code::kCorrupt, {"\"model.norm.weight\" no plain file name"});
  map["model.norm.weight"] = "a.safetensors";
  write_index(map);
  expect_error(Code::kCorrupt, {"a.safetensors lacks tensor \"model.norm.weight\""});
  map["model.norm.weight"] = "c.safetensors";
  write_index(map);
  expect_error(Code::kNotFound, {"c.safetensors"});
  map = Json::object();
  for (std::size_t i = 0; i <= kShardsMax; ++i) map[std::to_string(i)] = std::to_string(i);
  write_index(map);
  expect_error(Code::kInvalidArgument, {"1025 files"});
}

TEST_F(CheckpointTest, IdentityFollowsParametersAndWeightsOnly) {
  const std::string original = identity_hex();
  EXPECT_EQ(original.size(), 64U);
  change_config({{"max_position_embeddings", 512}, {"eos_token_id", 3}, {"bos_token_id", nullptr}});
  EXPECT_EQ(identity_hex(), original);
  change_config({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1000001.0}}}});
  EXPECT_NE(identity_hex(), original);
  change_config({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1000000.0}}}});
  EXPECT_EQ(identity_hex(), original);
  change_config({{"rms_norm_eps", 1e-5}});
  EXPECT_NE(identity_hex(), original);
  change_config({{"rms_norm_eps", 1e-6}});

  auto tensors = read_tensors();
  tensors.back().data.back() ^= 1;
  write_tensors("model.safetensors", tensors);
  EXPECT_NE(identity_hex(), original);
}

// Identities name models in frames and stores: they may not change from one version to the next.
TEST_F(CheckpointTest, IdentityIsStable) {
  EXPECT_EQ(identity_hex(), "88634401e4acd21a8d9116217054063600a8d169471887fb27f96ea38b52b912");
}

TEST_F(CheckpointTest, IdentityReportsProgress) {
  const auto checkpoint = Checkpoint::open(directory());
  ASSERT_TRUE(checkpoint.ok());
  std::uint64_t last = 0, total = 0;
  const auto identity = checkpoint->identity([&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  });
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(last, total);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) bytes += tensor.bytes.size();
  EXPECT_EQ(total, bytes);
}

TEST_F(CheckpointTest, DescriptionSaysItAll) {
  const auto text = describe_checkpoint_json(directory());
  ASSERT_TRUE(text.ok()) << text.status().message();
  const Json json = Json::parse(*text);
  EXPECT_EQ(json["architecture"], "Qwen3ForCausalLM");
  EXPECT_EQ(json["dtype"], "bf16");
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["head_dim"], 16);
  EXPECT_EQ(json["rope"]["theta"], 1e6);
  EXPECT_EQ(json["qk_norm"], true);
  EXPECT_EQ(json["eos"], Json({2}));
  // 2 embeddings, then per layer q, o (64x32), k, v (32x32), three of the FFN, norms; final norm.
  const int parameters =
      2 * 96 * 32 + 2 * (2 * 64 * 32 + 2 * 32 * 32 + 3 * 48 * 32 + 2 * 32 + 2 * 16) + 32;
  EXPECT_EQ(json["parameters"], parameters);
  EXPECT_EQ(json["weight_bytes"], 2 * parameters);
  EXPECT_EQ(json["kv_bytes_per_token"], 2 * 2 * 2 * 16 * 2);  // layers, K and V, heads, dim, bytes
  EXPECT_EQ(json["shards"].size(), 1U);
  EXPECT_EQ(json["shards"][0]["bytes"], fs::file_size(directory() / "model.safetensors"));
  EXPECT_EQ(json["identity"], identity_hex());
  EXPECT_EQ(describe_checkpoint_json(directory() / "nowhere").status().code(), Code::kNotFound);
}

struct CheckpointFixture {
  const char* name;
  ElementType type;
  int kv_heads;
  int head_dim;
  std::size_t shards;
};

// Written by Hugging Face's own library.
TEST(CheckpointFixtures, AllOpen) {
  for (const CheckpointFixture& fixture :
       {CheckpointFixture{"llama-mha-bf16-tied", ElementType::kBf16, 3, 16, 1},
        CheckpointFixture{"llama-gqa-bf16-llama3-sharded", ElementType::kBf16, 2, 16, 2},
        CheckpointFixture{"qwen3-gqa-bf16", ElementType::kBf16, 2, 32, 1},
        CheckpointFixture{"llama-mqa-f32", ElementType::kF32, 1, 16, 1},
        CheckpointFixture{"llama-gqa-f16", ElementType::kFp16, 1, 64, 1}}) {
    const auto checkpoint =
        Checkpoint::open(fs::path(kSourceDir) / "tests/fixtures/models" / fixture.name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->config().type, fixture.type) << fixture.name;
    EXPECT_EQ(checkpoint->config().kv_heads, fixture.kv_heads) << fixture.name;
    EXPECT_EQ(checkpoint->config().head_dim, fixture.head_dim) << fixture.name;
    EXPECT_EQ(checkpoint->shards().size(), fixture.shards) << fixture.name;
    EXPECT_TRUE(checkpoint->identity({}).ok());
  }
}

// Sequences within a window, or within LongRoPE's original context, are those of another model than
// longer ones.
TEST(CheckpointFixtures, IdentityFollowsWhatTheContextDecides) {
  for (const auto& [name, most] :
       {std::pair{"phi3-gqa-bf16-longrope", 32}, {"mistral-gqa-bf16-window", 70}}) {
    const auto checkpoint = Checkpoint::open(fs::path(kSourceDir) / "tests/fixtures/models" / name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const auto identity = [&](int context) { return *checkpoint->identity({}, context); };
    EXPECT_EQ(identity(most), identity(most - 1)) << name;
    EXPECT_EQ(identity(most + 1), identity(512)) << name;
    EXPECT_NE(identity(most), identity(512)) << name;
    if (checkpoint->config().window > 0) continue;
    // The factors of the second frequency.
    const double power = std::pow(10000.0, -2.0 / 16);
    EXPECT_NEAR(rope_inverse_frequencies(checkpoint->config(), most)[1], power / 1.05, 1e-6);
    EXPECT_NEAR(rope_inverse_frequencies(checkpoint->config(), 512)[1], power / 1.4, 1e-6);
  }
}

}  // namespace
}  // namespace kvlane
