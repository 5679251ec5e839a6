// vocab.json and merges.txt against a tokenizer.json of the same tokens.
// SPDX-License-Identifier: Apache-2.0
#include "model/gpt2_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/temporary_directory.h"
#include "model/tokenizer_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Files {
  std::string vocabulary, merges, config;
};

// What a tokenizer.json says, as the older files do.
Files files_of(const Json& tokenizer, const Json& config) {
  Json vocabulary = tokenizer["model"]["vocab"];
  for (const Json& token : tokenizer["added_tokens"]) {
    vocabulary[token["content"].get<std::string>()] = token["id"];
  }
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : tokenizer["model"]["merges"]) {
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  }
  return {vocabulary.dump(), merges, config.dump()};
}

const Json kOptConfig = {{"tokenizer_class", "GPT2Tokenizer"},
                         {"bos_token", {{"__type", "AddedToken"}, {"content", "</s>"}}},
                         {"eos_token", "</s>"},
                         {"pad_token", "<pad>"},
                         {"add_prefix_space", false},
                         {"add_bos_token", true}};

Files opt_files() { return files_of(Json::parse(read_tokenizer_fixture("opt.json")), kOptConfig); }

Status error_of(const Files& files) {
  const auto json = gpt2_tokenizer_json(files.vocabulary, files.merges, files.config);
  if (!json.ok()) return json.status();
  const auto tokenizer = Tokenizer::parse(*json);
  return tokenizer.ok() ? Status() : tokenizer.status();
}

TEST(Gpt2Files, GiveTheIdsOfTokenizerJson) {
  const Files files = opt_files();
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_file(directory.path() / "vocab.json", as_byte_view(files.vocabulary)).ok());
  ASSERT_TRUE(write_file(directory.path() / "merges.txt", as_byte_view(files.merges)).ok());
  ASSERT_TRUE(
      write_file(directory.path() / "tokenizer_config.json", as_byte_view(files.config)).ok());
  const Result<Tokenizer> ours = Tokenizer::load(directory.path());
  ASSERT_TRUE(ours.ok()) << ours.status().message();
  const Result<Tokenizer> theirs = parse_tokenizer_fixture("opt");
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(ours->vocab_size(), theirs->vocab_size());
  const std::string varied = read_tokenizer_fixture("varied.texts");
  for (std::size_t at = 0; at < varied.size(); at += 64) {
    const std::string text = varied.substr(at, 64) + (at % 128 == 0 ? "</s> and <pad>" : "");
    const auto ids = ours->encode(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, *theirs->encode(text)) << testing::PrintToString(text);
    EXPECT_EQ(ours->decode(*ids), theirs->decode(*ids));
  }
}

TEST(Gpt2Files, NeedNoConfiguration) {
  Files files = opt_files();
  files.config.clear();
  const auto json = gpt2_tokenizer_json(files.vocabulary, files.merges, files.config);
  ASSERT_TRUE(json.ok()) << json.status().message();
  const auto tokenizer = Tokenizer::parse(*json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto ids = tokenizer->encode("It is </s>");
  EXPECT_EQ(*ids, *tokenizer->encode("It is </s>", false));
  EXPECT_EQ(tokenizer->decode(*ids), "It is </s>");
}

TEST(Gpt2Files, WhatCannotBeSaysWhy) {
  const auto with = [](auto change) {
    Files files = opt_files();
    change(files);
    return error_of(files);
  };
  EXPECT_TRUE(with([](Files&) {}).ok());
  Status status = with([](Files& files) { files.merges += "one\n"; });
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("line 302 of merges.txt is no pair of tokens"));
  status = with([](Files& files) { files.merges += "zq qz\n"; });
  EXPECT_EQ(status.code(), Code::kCorrupt);
  status = with([](Files& files) { files.vocabulary = "[]"; });
  EXPECT_THAT(status.message(), HasSubstr("vocab.json: it is not a JSON object"));
  status = with([](Files& files) { files.vocabulary.pop_back(); });
  EXPECT_EQ(status.code(), Code::kCorrupt);
  status = with([](Files& files) { files.config = R"({"tokenizer_class": "RobertaTokenizer"})"; });
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("RobertaTokenizer"));
  status = with([](Files& files) { files.config = R"({"eos_token": "<none>"})"; });
  EXPECT_THAT(status.message(), HasSubstr("which is the eos_token"));
  status = with([](Files& files) { files.config = R"({"add_bos_token": true})"; });
  EXPECT_EQ(status.code(), Code::kCorrupt);
}

}  // namespace
}  // namespace kvlane
