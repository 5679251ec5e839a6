// Codebook files: what is written is read back; what is not as the spec says is refused by name.
// SPDX-License-Identifier: Apache-2.0
#include "calib/codebook_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlane {
namespace {

using ::testing::HasSubstr;

constexpr KvShape kShape{.layers = 2, .kv_heads = 1, .head_dim = 4};

CodebookFile sample() {
  CodebookFile file;
  file.model.fill(std::byte{0x5A});
  file.tokens = 1234;
  for (std::size_t book = 0; book < 4; ++book) {
    CalibratedCodebook& calibrated = file.books.emplace_back();
    for (std::size_t i = 0; i < 16; ++i) {
      calibrated.book.exponents[i] = static_cast<std::uint8_t>(100 + 8 * book + i);
    }
    calibrated.coverage = 0.99 + 0.001 * static_cast<double>(book);
  }
  return file;
}

Status parse(const std::string& text) {
  return parse_codebook_file(text, sample().model, kShape).status();
}

// The sample's text with one part of it replaced.
std::string with(const std::string& what, const std::string& by) {
  std::string text = to_json(sample());
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(CodebookFile, IsReadAsItWasWritten) {
  const CodebookFile written = sample();
  const auto read = parse_codebook_file(to_json(written), written.model, kShape);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->model, written.model);
  EXPECT_EQ(read->tokens, written.tokens);
  ASSERT_EQ(read->books.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read->books[i].book.exponents, written.books[i].book.exponents);
    EXPECT_EQ(read->books[i].coverage, written.books[i].coverage);
  }
}

TEST(CodebookFile, OfAnotherModelIsRefused) {
  ModelIdentity other{};
  const Status status = parse_codebook_file(to_json(sample()), other, kShape).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("another model"));
  EXPECT_THAT(status.message(), HasSubstr("5a5a5a5a5a5a5a5a"));
}

TEST(CodebookFile, OfAnotherVersionOrTypeIsRefused) {
  EXPECT_EQ(parse(with("\"kvlane_codebook\": 1", "\"kvlane_codebook\": 2")).code(),
            Code::kUnsupported);
  EXPECT_EQ(parse(with("bf16", "fp16")).code(), Code::kUnsupported);
}

TEST(CodebookFile, WhatIsNotAsTheSpecSaysIsCorrupt) {
  const std::string good = to_json(sample());
  EXPECT_TRUE(parse(good).ok());
  EXPECT_TRUE(parse(with("\"tokens\"", "\"more\": {}, \"tokens\"")).ok()) << "unknown members";
  for (const auto& [what, by] : std::vector<std::pair<std::string, std::string>>{
           {"\"kvlane_codebook\": 1", "\"kvlane_codebook\": \"1\""},
           {"\"kvlane_codebook\"", "\"other\""},
           {"\"model\"", "\"modell\""},
           {"\"element_type\": \"bf16\"", "\"element_type\": 2"},
           {"1234", "0"},
           {"1234", "-5"},
           {"1234", "1e3"},
           {"\"layers\"", "\"layer\""},
           {"\"k\"", "\"q\""},
           {"\"v\"", "\"w\""},
           {"100", "101"},  // not ascending
           {"100", "256"},
           {"100", "-1"},
           {"100", "99.5"},
           {"100,", ""},  // 15
           {"\"coverage\"", "\"cover\""}}) {
    EXPECT_EQ(parse(with(what, by)).code(), Code::kCorrupt) << what << " -> " << by;
  }
  EXPECT_EQ(parse(with("0.99", "1.5")).code(), Code::kCorrupt);
  EXPECT_EQ(parse("").code(), Code::kCorrupt);
  EXPECT_EQ(parse("[]").code(), Code::kCorrupt);
  EXPECT_EQ(parse(std::string(100'000, '[')).code(), Code::kCorrupt);
}

TEST(CodebookFile, EveryPrefixIsRefused) {
  const std::string good = to_json(sample());
  const std::size_t end = good.find_last_of('}');
  for (std::size_t size = 0; size <= end; ++size) {
    EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
  }
}

TEST(CodebookFile, TheNumberOfLayersIsTheModels) {
  EXPECT_THAT(parse_codebook_file(to_json(sample()), sample().model, {3, 1, 4}).status().message(),
              HasSubstr("3 layers"));
}

}  // namespace
}  // namespace kvlane
