// tokenizer.model: what is refused, by name, and that a damaged file is an error.
// SPDX-License-Identifier: Apache-2.0
#include "model/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/random.h"
#include "model/tokenizer_fixture.h"

namespace kvlane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

std::string varint(std::size_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7U) bytes += static_cast<char>(0x80U | (value & 0x7FU));
  return bytes + static_cast<char>(value);
}

// Fields of a protocol buffer.
std::string number(std::size_t field, std::size_t value) {
  return varint(field << 3U) + varint(value);
}
std::string message(std::size_t field, const std::string& bytes) {
  return varint(field << 3U | 2U) + varint(bytes.size()) + bytes;
}

Status error_of(const std::string& model) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse_sentencepiece(model);
  return tokenizer.ok() ? Status() : tokenizer.status();
}

TEST(SentencePieceModelTest, HasTheTokensOfTheFile) {
  const Result<Tokenizer> tokenizer = parse_tokenizer_fixture("spm");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 1000);
  EXPECT_EQ(tokenizer->find("<s>"), 1);
  EXPECT_EQ(tokenizer->find("</s>"), 2);
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_FALSE(tokenizer->is_special(0));
  EXPECT_EQ(tokenizer->token_bytes(0), " \u2047 ");
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xE4), "\xE4");
  EXPECT_EQ(tokenizer->find(" the"), tokenizer->encode("the", false)->front());
  EXPECT_THAT(*tokenizer->encode(""), ElementsAre(1));
  EXPECT_THAT(*tokenizer->encode("<s></s>", false), ElementsAre(1, 2));
}

TEST(SentencePieceModelTest, IsLoadedWhereThereIsNoTokenizerJson) {
  const std::filesystem::path directory = testing::TempDir() + "kvlane_sentencepiece_model";
  std::filesystem::create_directory(directory);
  std::ofstream(directory / "tokenizer.model", std::ios::binary)
      << read_tokenizer_fixture("spm.model");
  const Result<Tokenizer> tokenizer = Tokenizer::load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 1000);

  std::ofstream(directory / "tokenizer.model", std::ios::binary) << "damaged";
  const Result<Tokenizer> damaged = Tokenizer::load(directory);
  ASSERT_FALSE(damaged.ok());
  EXPECT_THAT(damaged.status().message(), HasSubstr("tokenizer.model: it is not a model of"));
  std::filesystem::remove_all(directory);
}

TEST(SentencePieceModelTest, TokenizerConfigAddsTokens) {
  const std::string model = read_tokenizer_fixture("spm.model");
  const auto parse = [&](const std::string& config) {
    return Tokenizer::parse_sentencepiece(model, config);
  };
  const Result<Tokenizer> tokenizer =
      parse(R"({"add_bos_token":false,"add_eos_token":true,"added_tokens_decoder":{
        "2":{"content":"</s>","lstrip":false,"normalized":false,"rstrip":true,"single_word":false,
             "special":true},
        "1002":{"content":"<|user|>","lstrip":false,"normalized":true,"rstrip":true,
                "single_word":false,"special":true}}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 1003);
  EXPECT_THAT(*tokenizer->encode("<s><|user|>\n<|user|>"), ElementsAre(1, 1002, 1002, 2));
  EXPECT_THAT(*tokenizer->encode("</s> \n<s>"), ElementsAre(2, 1, 2));  // its flags are the file's
  EXPECT_EQ(tokenizer->decode(Ids{1002, 3 + 'a', 1001}), "a");
  EXPECT_EQ(tokenizer->token_bytes(1002), "<|user|>");

  const auto listing = [&](const char* content) {
    return parse(R"({"added_tokens_decoder":{"0":{"content":")" + std::string(content) +
                 R"(","lstrip":false,"normalized":false,"rstrip":false,"single_word":false,
                     "special":true}}})");
  };
  // As its own text, of which the model makes pieces; left out where special tokens are.
  const Result<Tokenizer> unknown = listing("<unk>");
  ASSERT_TRUE(unknown.ok()) << unknown.status().message();
  EXPECT_THAT(*unknown->encode("<unk>"), ElementsAre(1, 0));
  EXPECT_TRUE(unknown->is_special(0));
  const Result<Tokenizer> renamed = listing("<none>");
  ASSERT_FALSE(renamed.ok());
  EXPECT_EQ(renamed.status().code(), Code::kUnsupported);
  EXPECT_THAT(renamed.status().message(),
              HasSubstr("tokenizer_config.json calls token 0 '<none>', the model '<unk>'"));

  for (const char* bad : {"[", R"({"add_bos_token":1})", R"({"added_tokens_decoder":[]})",
                          R"({"added_tokens_decoder":{"1002":{}}})",
                          R"({"added_tokens_decoder":{"-1":{"content":"a","lstrip":false,
                              "normalized":false,"rstrip":false,"single_word":false,
                              "special":true}}})"}) {
    const Result<Tokenizer> refused = parse(bad);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kCorrupt);
    EXPECT_THAT(refused.status().message(), HasSubstr("tokenizer_config.json: "));
  }
}

TEST(SentencePieceModelTest, RefusesByName) {
  const std::string model = read_tokenizer_fixture("spm.model");
  // What comes later in a message counts.
  const std::string unigram = message(2, number(3, 1));
  const struct {
    std::string file;
    Code code;
    const char* words;
  } cases[] = {
      {"", Code::kCorrupt, "not a model of sentencepiece"},
      {"{}", Code::kCorrupt, "not a model of sentencepiece"},
      {model + unigram, Code::kUnsupported, "model type 1"},
      {model + message(3, message(2, "table")), Code::kUnsupported, "'precompiled_charsmap'"},
      {model + message(5, message(2, "table")), Code::kUnsupported, "'precompiled_charsmap'"},
      {model + message(3, number(5, 0)), Code::kUnsupported, "unescaped spaces"},
      {model + message(2, number(24, 1)), Code::kUnsupported, "'treat_whitespace_as_suffix'"},
      {model + message(1, message(1, std::string(1025, 'a'))), Code::kUnsupported, "1025 bytes"},
      {model + message(1, message(1, "\xFF")), Code::kCorrupt, "not valid UTF-8"},
      {model + message(1, message(1, "z") + std::string("\x15\x00\x00\x80\x7F", 5)), Code::kCorrupt,
       "not finite"},
      {model + message(1, message(1, "e")), Code::kCorrupt, "sentencepiece does not load it"},
  };
  for (const auto& bad : cases) {
    const Status status = error_of(bad.file);
    EXPECT_EQ(status.code(), bad.code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(bad.words));
  }
}

TEST(SentencePieceModelTest, EveryPrefixIsAnErrorOrAModel) {
  const std::string model = read_tokenizer_fixture("spm.model");
  for (std::size_t bytes = 0; bytes < model.size(); bytes += 97) {
    const Status status = error_of(model.substr(0, bytes));
    // The messages at the end may be left out.
    EXPECT_TRUE(!status.ok() || bytes > 9 * model.size() / 10) << bytes;
    EXPECT_NE(status.code(), Code::kInternal) << status.message();
  }
}

TEST(SentencePieceModelTest, ChangedBytesAreAnErrorOrAModel) {
  const std::string model = read_tokenizer_fixture("spm.model");
  for (std::uint32_t round = 0; round < 2000; ++round) {
    std::string changed = model;
    for (std::uint32_t at = 0; at < 1 + round % 4; ++at) {
      const PhiloxCounter random = philox4x32(9, {round, at, 0, 0});
      changed[random[0] % changed.size()] = static_cast<char>(random[1]);
    }
    const Result<Tokenizer> tokenizer = Tokenizer::parse_sentencepiece(changed);
    if (!tokenizer.ok()) continue;
    const Result<Ids> ids = tokenizer->encode("It's 12345 caf\u00e9 \U0001f600 <s> ");
    if (ids.ok()) tokenizer->decode(*ids);
  }
}

}  // namespace
}  // namespace kvlane
