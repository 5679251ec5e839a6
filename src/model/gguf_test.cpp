// GGUF against the checkpoints and tokenizers that the fixtures were made of, and on hostile input.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/gguf_config.h"
#include "model/gguf_tensors.h"
#include "model/gguf_tokenizer.h"
#include "model/model.h"
#include "model/tokenizer_fixture.h"
#include "model/widen.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(KVLANE_SOURCE_DIR) / "tests" / "fixtures";

std::string read_gguf(const std::string& name) {
  const Result<std::string> bytes = read_text_file(kFixtures / "gguf" / (name + ".gguf"), 1U << 20);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? *bytes : std::string();
}

// A directory with this file alone.
class GgufDirectory {
 public:
  explicit GgufDirectory(const std::string& bytes)
      : path_(testing::TempDir() + "kvlane_gguf_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(path_);
    fs::create_directory(path_);
    EXPECT_TRUE(write_file(path_ / "model.gguf", as_byte_view(bytes)).ok());
  }
  ~GgufDirectory() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<float> widened(const TensorView& tensor) {
  std::vector<float> values(tensor.bytes.size() / element_bytes(tensor.type));
  widen(tensor.type, tensor.bytes.data(), values.size(), values.data());
  return values;
}

// The greatest difference of a tensor's blocks of 32, in steps of what 8 bits of a block can say.
double steps_between(const std::vector<float>& exact, const std::vector<float>& coded) {
  double steps = 0;
  for (std::size_t begin = 0; begin < exact.size(); begin += 32) {
    const std::size_t end = std::min(begin + 32, exact.size());
    double largest = 1e-30;
    double difference = 0;
    for (std::size_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::abs(double{exact[i]}));
      difference = std::max(difference, std::abs(double{exact[i]} - coded[i]));
    }
    steps = std::max(steps, 127 * difference / largest);
  }
  return steps;
}

void expect_same_model(const std::string& gguf, const std::string& model, double steps_max) {
  const GgufDirectory directory(read_gguf(gguf));
  const Result<Checkpoint> ours = Checkpoint::open(directory.path());
  ASSERT_TRUE(ours.ok()) << ours.status().message();
  const Result<Checkpoint> theirs = Checkpoint::open(kFixtures / "models" / model);
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  const ModelConfig& a = ours->config();
  const ModelConfig& b = theirs->config();
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(std::tuple(a.layers, a.hidden, a.heads, a.kv_heads, a.head_dim, a.ffn, a.vocab),
            std::tuple(b.layers, b.hidden, b.heads, b.kv_heads, b.head_dim, b.ffn, b.vocab));
  EXPECT_EQ(std::tuple(a.context, a.norm_eps, a.rope_theta, a.qkv_bias, a.tied_embeddings),
            std::tuple(b.context, b.norm_eps, b.rope_theta, b.qkv_bias, b.tied_embeddings));
  EXPECT_EQ(ours->tensors().size(), theirs->tensors().size());
  for (const auto& [name, tensor] : theirs->tensors()) {
    const Result<TensorView> found = ours->tensor(name, tensor.shape);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_LE(steps_between(widened(tensor), widened(*found)), steps_max) << name;
    ours->release(*found);
  }
  EXPECT_TRUE(ours->identity({}).ok());
}

TEST(GgufTest, RowsInPairsGoBackToHalves) { expect_same_model("llama", "llama-gqa-f16", 0); }

// Half a step of the code; scales and numbers are rounded to F16, whose steps are far smaller.
TEST(GgufTest, CodedWeightsAreThoseOfTheModel) {
  expect_same_model("qwen2", "qwen2-gqa-bf16", 0.6);
}

// Llama 3.1 says in four numbers what llama.cpp writes as a divisor of each frequency.
TEST(GgufTest, DivisorsOfRotationAreTheModelsScaling) {
  expect_same_model("llama31", "llama-gqa-bf16-llama3-sharded", 0);
  const GgufDirectory directory(read_gguf("llama31"));
  const ModelConfig ours = Checkpoint::open(directory.path())->config();
  const ModelConfig theirs =
      Checkpoint::open(kFixtures / "models" / "llama-gqa-bf16-llama3-sharded")->config();
  for (const int context : {64, 512}) {
    const std::vector<float> frequencies = rope_inverse_frequencies(ours, context);
    const std::vector<float> expected = rope_inverse_frequencies(theirs, context);
    ASSERT_EQ(frequencies.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(frequencies[i] / expected[i], 1, 1e-6) << i;
    }
  }
  EXPECT_EQ(ours.rope_scaling.attention_factor, 1);
}

TEST(GgufTest, ChatTemplateComesWithTheModel) {
  const GgufDirectory directory(read_gguf("llama3-tokens"));
  const Result<ChatTemplate> chat = ChatTemplate::load(directory.path());
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  const Result<std::string> source =
      read_text_file(kFixtures / "chat_template" / "headers.jinja", 1U << 20);
  ASSERT_TRUE(source.ok());
  const Result<ChatTemplate> expected =
      ChatTemplate::parse(*source, "<|begin_of_text|>", "<|end_of_text|>");
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Hello"}};
  const Result<std::string> prompt = chat->render(messages, true);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_EQ(*prompt, *expected->render(messages, true));
  EXPECT_TRUE(prompt->starts_with("<|begin_of_text|>"));

  // A file beside the model comes first.
  ASSERT_TRUE(write_file(directory.path() / "chat_template.jinja",
                         as_byte_view(std::string_view("{{ eos_token }} beside")))
                  .ok());
  EXPECT_EQ(*ChatTemplate::load(directory.path())->render(messages, true),
            "<|end_of_text|> beside");
  const GgufDirectory without(read_gguf("qwen2"));
  EXPECT_EQ(ChatTemplate::load(without.path()).status().code(), Code::kNotFound);
}

TEST(GgufTest, TokenizersAreThoseOfTokenizerJson) {
  for (const auto& [gguf, json] :
       {std::pair("llama", "llama2"), std::pair("llama3-tokens", "llama3"),
        std::pair("qwen2", "qwen2")}) {
    const GgufDirectory directory(read_gguf(gguf));
    const Result<Tokenizer> ours = Tokenizer::load(directory.path());
    ASSERT_TRUE(ours.ok()) << ours.status().message();
    const Result<Tokenizer> theirs = parse_tokenizer_fixture(json);
    ASSERT_TRUE(theirs.ok());
    // Texts with lengths of two bytes in front; as one text those are characters like others.
    const std::string varied = read_tokenizer_fixture("varied.texts");
    for (std::size_t at = 0; at < varied.size(); at += 64) {
      const std::string_view text = std::string_view(varied).substr(at, 64);
      if (text.find("<|caf") != std::string_view::npos) continue;  // a token GGUF cannot say
      const auto ids = ours->encode(text);
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(*ids, *theirs->encode(text)) << testing::PrintToString(text);
      EXPECT_EQ(ours->decode(*ids), theirs->decode(*ids));
    }
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(GgufTest, RefusesByName) {
  const std::string llama = read_gguf("llama");
  const std::string qwen2 = read_gguf("qwen2");
  const struct {
    std::string file;
    Code code;
    const char* words;
  } cases[] = {
      {"GGUX" + llama.substr(4), Code::kCorrupt, "not a GGUF file"},
      {replaced(llama, std::string("GGUF\3", 5), std::string("GGUF\1", 5)), Code::kUnsupported,
       "version 1"},
      {replaced(llama, "blk.0.attn_v.weight", "blk.0.attn_x.weight"), Code::kUnsupported,
       "'blk.0.attn_x.weight'"},
      {replaced(llama, "llama.block_count", "llama.block_xount"), Code::kCorrupt,
       "no 'llama.block_count'"},
      {replaced(read_gguf("llama31"), "rope_freqs.weight", "rope_freks.weight"), Code::kUnsupported,
       "'rope_freks.weight'"},
      {replaced(qwen2, "output_norm.weight", "rope_freqs.weight#"), Code::kUnsupported,
       "'rope_freqs.weight#'"},
  };
  for (const auto& bad : cases) {
    const GgufDirectory directory(bad.file);
    const Result<Checkpoint> checkpoint = Checkpoint::open(directory.path());
    const Status status = checkpoint.ok() ? Status() : checkpoint.status();
    EXPECT_EQ(status.code(), bad.code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(bad.words));
  }
  const GgufDirectory directory(llama);
  EXPECT_TRUE(write_file(directory.path() / "other.gguf", as_byte_view(llama)).ok());
  EXPECT_THAT(Checkpoint::open(directory.path()).status().message(), HasSubstr("several .gguf"));
}

// Reads all that a file may be asked for.
void use(std::string_view bytes) {
  const Result<GgufFile> file = parse_gguf(as_byte_view(bytes));
  if (!file.ok()) {
    EXPECT_NE(file.status().code(), Code::kInternal);
    return;
  }
  if (const auto config = gguf_config(*file); config.ok()) {
    static_cast<void>(gguf_tensors(*file, *config));
  }
  static_cast<void>(gguf_tokenizer_json(*file));
  static_cast<void>(gguf_chat(*file));
}

TEST(GgufTest, EveryPrefixIsAnError) {
  const std::string bytes = read_gguf("qwen2");
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 64) {
    EXPECT_FALSE(parse_gguf(as_byte_view(std::string_view(bytes).substr(0, size))).ok()) << size;
  }
}

TEST(GgufTest, ChangedBytesAreAnErrorOrAFile) {
  const std::string bytes = read_gguf("llama31");
  for (std::uint32_t round = 0; round < 2000; ++round) {
    std::string changed = bytes;
    for (std::uint32_t at = 0; at < 1 + round % 4; ++at) {
      const PhiloxCounter random = philox4x32(11, {round, at, 0, 0});
      // Mostly where names and sizes are.
      changed[random[0] % (round % 2 == 0 ? 2000 : changed.size())] = static_cast<char>(random[1]);
    }
    use(changed);
  }
}

}  // namespace
}  // namespace kvlane
