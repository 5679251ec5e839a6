// GGUF against the checkpoints and tokenizers that the fixtures were made of, and on hostile input.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "base/test_sanitizers.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/gguf_config.h"
#include "model/gguf_fixture.h"
#include "model/gguf_tensors.h"
#include "model/gguf_tokenizer.h"
#include "model/model.h"
#include "model/tokenizer_fixture.h"
#include "model/widen.h"

namespace kvlane {
namespace {

using gguf_fixture::GgufDirectory;
using gguf_fixture::kFixtures;
using gguf_fixture::read_gguf;
using gguf_fixture::replaced;
using ::testing::HasSubstr;

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

void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(std::tuple(a.layers, a.hidden, a.heads, a.kv_heads, a.head_dim, a.ffn, a.vocab),
            std::tuple(b.layers, b.hidden, b.heads, b.kv_heads, b.head_dim, b.ffn, b.vocab));
  EXPECT_EQ(std::tuple(a.context, a.norm_eps, a.rope_theta, a.qkv_bias, a.tied_embeddings),
            std::tuple(b.context, b.norm_eps, b.rope_theta, b.qkv_bias, b.tied_embeddings));
  EXPECT_EQ(std::tuple(a.norm, a.activation, a.parallel, a.shared_norm, a.qk_norm, a.ffn_bias),
            std::tuple(b.norm, b.activation, b.parallel, b.shared_norm, b.qk_norm, b.ffn_bias));
  EXPECT_EQ(std::tuple(a.window, a.windowed_first, a.attention_out_bias),
            std::tuple(b.window, b.windowed_first, b.attention_out_bias));
}

void expect_same_rotation(const ModelConfig& a, const ModelConfig& b) {
  for (const int context : {64, 512}) {
    const std::vector<float> ours = rope_inverse_frequencies(a, context);
    const std::vector<float> theirs = rope_inverse_frequencies(b, context);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < theirs.size(); ++i) EXPECT_NEAR(ours[i] / theirs[i], 1, 1e-6) << i;
  }
  EXPECT_NEAR(a.rope_scaling.attention_factor, b.rope_scaling.attention_factor, 1e-7);
}

void expect_same_model(const std::string& gguf, const std::string& model, double steps_max) {
  SCOPED_TRACE(gguf);
  const GgufDirectory directory(read_gguf(gguf));
  const Result<Checkpoint> ours = Checkpoint::open(directory.path());
  ASSERT_TRUE(ours.ok()) << ours.status().message();
  const Result<Checkpoint> theirs = Checkpoint::open(kFixtures / "models" / model);
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  expect_same_config(ours->config(), theirs->config());
  expect_same_rotation(ours->config(), theirs->config());
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
  expect_same_model("falcon-mqa", "falcon-mqa-bf16", 0.6);
}

// Llama 3.1 says in four numbers what llama.cpp writes as a divisor of each frequency.
TEST(GgufTest, DivisorsOfRotationAreTheModelsScaling) {
  expect_same_model("llama31", "llama-gqa-bf16-llama3-sharded", 0);
}

TEST(GgufTest, AWindowMakesMistralOfLlama) {
  expect_same_model("mistral", "mistral-gqa-bf16-window", 0);
}

TEST(GgufTest, YarnIsThatOfTheModel) { expect_same_model("yarn", "llama-f32-yarn", 0); }

// All Q, all K, all V go back to groups; which norm is which depends on how many there are.
TEST(GgufTest, FalconHasItsGroupsAndNorms) { expect_same_model("falcon", "falcon-gqa-bf16", 0); }

TEST(GgufTest, Phi3HasFactorsForShortAndLongSequences) {
  expect_same_model("phi3", "phi3-gqa-bf16-longrope", 0);
  const GgufDirectory directory(read_gguf("phi3"));
  const ModelConfig config = Checkpoint::open(directory.path())->config();
  EXPECT_EQ(config.rope_scaling.original_max_position, 32);
  EXPECT_NE(rope_inverse_frequencies(config, 32), rope_inverse_frequencies(config, 33));
  // The file names 2; 7 and 3 are "<|end|>" and "<|endoftext|>".
  EXPECT_EQ(config.eos, (std::vector<std::int32_t>{2, 7, 3}));
  EXPECT_EQ(config.bos, 1);
}

TEST(GgufTest, ChatTemplateComesWithTheModel) {
  const GgufDirectory directory(read_gguf("llama3-tokens"));
  const Result<ChatTemplate> chat = ChatTemplate::load(directory.path());
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  const Result<std::string> source =
      read_text_file(kFixtures / "chat_template" / "headers.jinja", 1U << 20);
  ASSERT_TRUE(source.ok());
  const Result<ChatTemplate> expected =
      ChatTemplate::parse(*source, {{"bos_token", "<|begin_of_text|>"}});
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Hello"}};
  const Result<std::string> prompt = chat->render(messages, true);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_EQ(*prompt, *expected->render(messages, true));
  EXPECT_TRUE(prompt->starts_with("<|begin_of_text|>"));
  const std::string bytes = read_gguf("phi3-tokens");
  const Result<GgufChat> phi3 = gguf_chat(*parse_gguf(as_byte_view(bytes)));
  ASSERT_TRUE(phi3.ok()) << phi3.status().message();
  EXPECT_EQ(phi3->tokens.at("bos_token"), "<s>");
  EXPECT_EQ(phi3->tokens.at("unk_token"), "<unk>");

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
        std::pair("qwen2", "qwen2"), std::pair("phi3-tokens", "phi3"),
        std::pair("falcon", "falcon")}) {
    SCOPED_TRACE(gguf);
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

TEST(GgufTest, TokensOfPhi3TakeSpacesBehindThemAlong) {
  const GgufDirectory directory(read_gguf("phi3-tokens"));
  const Result<Tokenizer> ours = Tokenizer::load(directory.path());
  ASSERT_TRUE(ours.ok()) << ours.status().message();
  const Result<Tokenizer> theirs = parse_tokenizer_fixture("phi3");
  for (const std::string_view text : {"<|assistant|> \n the <|end|>\n<|endoftext|> \nthe",
                                      "</s>  the<s> the", "[PAD1003]", "a [PAD1004] b"}) {
    EXPECT_EQ(*ours->encode(text), *theirs->encode(text)) << text;
  }
}

// Later files have Llama's end of a text as a token like the others.
TEST(GgufTest, TheEndOfATextTakesSpacesAlongWhereItIsNotSpecial) {
  const std::string bytes = read_gguf("phi3-tokens");
  GgufFile file = *parse_gguf(as_byte_view(bytes));
  const auto encode = [&file] {
    return *Tokenizer::parse(*gguf_tokenizer_json(file))->encode("</s>  the");
  };
  const std::vector<std::int32_t> special = encode();
  std::get<std::vector<double>>(file.metadata.at("tokenizer.ggml.token_type"))[2] = 4;
  const std::vector<std::int32_t> own = encode();
  EXPECT_EQ(own.front(), 2);
  EXPECT_LT(own.size(), special.size());
}

// The same tokens in another architecture are as the file has them.
TEST(GgufTest, TokensOfOthersLeaveSpacesAlone) {
  const GgufDirectory directory(replaced(read_gguf("phi3-tokens"), "phi3", "phi4"));
  const Result<Tokenizer> tokenizer = Tokenizer::load(directory.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_NE(*tokenizer->encode("<|end|> the"),
            *parse_tokenizer_fixture("phi3")->encode("<|end|> the"));
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
  const std::string files[] = {read_gguf("llama31"), read_gguf("phi3"), read_gguf("falcon"),
                               read_gguf("yarn")};
  for (std::uint32_t round = 0; round < (kSanitized ? 1000 : 4000); ++round) {
    std::string changed = files[round % std::size(files)];
    for (std::uint32_t at = 0; at < 1 + round % 4; ++at) {
      const PhiloxCounter random = philox4x32(11, {round, at, 0, 0});
      // Mostly where names and sizes are.
      changed[random[0] % (round % 8 < 4 ? 2000 : changed.size())] = static_cast<char>(random[1]);
    }
    use(changed);
  }
}

}  // namespace
}  // namespace kvlane
