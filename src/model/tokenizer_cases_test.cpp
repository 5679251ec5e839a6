// Tokenizers against the `tokenizers` package and sentencepiece, on fixtures made with them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "base/random.h"
#include "model/detokenizer.h"
#include "model/tokenizer_fixture.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

class FixtureTest : public testing::TestWithParam<const char*> {
 protected:
  FixtureTest()
      : cases_(Json::parse(read_tokenizer_fixture(std::string(GetParam()) + ".cases.json"))),
        tokenizer_(parse_tokenizer_fixture(GetParam())) {}

  void SetUp() override { ASSERT_TRUE(tokenizer_.ok()) << tokenizer_.status().message(); }

  Json cases_;
  Result<Tokenizer> tokenizer_;
};

TEST_P(FixtureTest, EncodesLikeThePackage) {
  for (const Json& item : cases_.at("encode")) {
    const std::string text = item.at("text");
    const Ids expected = item.at("ids");
    const Result<Ids> ids = tokenizer_->encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, expected) << item.at("text").dump(-1, ' ', true);
    const Result<Ids> with_special = tokenizer_->encode(text);
    ASSERT_TRUE(with_special.ok());
    EXPECT_EQ(*with_special,
              item.contains("ids_special") ? item.at("ids_special").get<Ids>() : expected);
  }
}

TEST_P(FixtureTest, DecodesLikeThePackage) {
  for (const Json& item : cases_.at("encode")) {
    const std::string expected = item.contains("decoded") ? item.at("decoded") : item.at("text");
    EXPECT_EQ(tokenizer_->decode(item.at("ids").get<Ids>()), expected);
  }
  for (const Json& item : cases_.at("decode")) {
    EXPECT_EQ(tokenizer_->decode(item.at("ids").get<Ids>()), item.at("text").get<std::string>());
  }
}

TEST_P(FixtureTest, StreamJoinsToDecodeInWholeCharacters) {
  const auto check = [&](const Ids& ids) {
    TokenStream stream(*tokenizer_);
    std::string joined;
    for (const std::int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_EQ(find_invalid_utf8(part), std::nullopt);
      joined += part;
    }
    joined += stream.finish();
    EXPECT_EQ(joined, tokenizer_->decode(ids));
    EXPECT_EQ(stream.finish(), "");
  };
  for (const char* list : {"encode", "decode"}) {
    for (const Json& item : cases_.at(list)) check(item.at("ids").get<Ids>());
  }
  // Random ids: mostly single bytes, so that characters begin, break off and go wrong everywhere.
  for (std::uint32_t round = 0; round < 2000; ++round) {
    Ids ids;
    for (std::uint32_t at = 0; at < 1 + round % 40; ++at) {
      const PhiloxCounter random = philox4x32(7, {round, at, 0, 0});
      const std::uint32_t range = random[0] % 4 != 0 ? 256U : 800U;
      ids.push_back(static_cast<std::int32_t>(random[1] % range) - 5);
    }
    check(ids);
  }
}

// Inside a text no space is left out, whichever token comes first.
TEST_P(FixtureTest, TokenBytesJoinToTheTextOfAContinuation) {
  for (const Json& item : cases_.at("encode")) {
    const Ids ids = item.at("ids").get<Ids>();
    TokenStream stream(*tokenizer_, TokenStream::Begin::kContinuation);
    std::string text;
    std::string bytes;
    for (const std::int32_t id : ids) {
      text += stream.push(id);
      if (!tokenizer_->is_special(id)) bytes.append(tokenizer_->token_bytes(id));
    }
    text += stream.finish();
    std::string joined;
    append_replacing_invalid(joined, bytes, tokenizer_->detokenizer().invalid_unit());
    EXPECT_EQ(text, joined);
    EXPECT_TRUE(text.ends_with(tokenizer_->decode(ids)));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, FixtureTest,
                         testing::Values("gpt2", "prefix_space", "llama3", "qwen2", "cased", "opt",
                                         "falcon", "metaspace", "llama2", "mistral", "phi3", "spm"),
                         [](const auto& test) { return std::string(test.param); });

// Takes numbers of 16 bits and strings off the front of a file.
class FileReader {
 public:
  explicit FileReader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::size_t take_number() {
    const std::string_view pair = take(2);
    return pair.size() < 2
               ? 0
               : static_cast<unsigned char>(pair[0]) + 256U * static_cast<unsigned char>(pair[1]);
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

class VariedTest : public testing::TestWithParam<const char*> {};

TEST_P(VariedTest, TwoThousandTexts) {
  const Result<Tokenizer> tokenizer = parse_tokenizer_fixture(GetParam());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string texts_file = read_tokenizer_fixture("varied.texts");
  const std::string expected_file = read_tokenizer_fixture(std::string(GetParam()) + ".varied");
  FileReader texts(texts_file);
  FileReader expected(expected_file);
  int count = 0;
  for (; !texts.at_end(); ++count) {
    const std::string_view text = texts.take(texts.take_number());
    Ids expected_ids(expected.take_number());
    for (std::int32_t& id : expected_ids) id = static_cast<std::int32_t>(expected.take_number());
    const std::size_t decoded_bytes = expected.take_number();
    std::string decoded(decoded_bytes == 65535 ? "" : expected.take(decoded_bytes));
    if (decoded_bytes == 65535) append_replacing_invalid(decoded, text);

    const Result<Ids> ids = tokenizer->encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, expected_ids) << "text " << count << ": " << testing::PrintToString(text);
    EXPECT_EQ(tokenizer->decode(expected_ids), decoded) << "text " << count;
  }
  EXPECT_EQ(count, 2000);
  EXPECT_TRUE(expected.at_end());
}

// A text without spaces or splitting is one word: what is quadratic in its length takes hours.
TEST_P(VariedTest, AMegabyteTakesSeconds) {
  const Result<Tokenizer> tokenizer = parse_tokenizer_fixture(GetParam());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string texts_file = read_tokenizer_fixture("varied.texts");
  std::string varied;
  for (FileReader texts(texts_file); !texts.at_end();) {
    append_replacing_invalid(varied, texts.take(texts.take_number()));
  }
  const std::pair<const char*, std::string> units[] = {
      {"varied", varied}, {"english", "the"}, {"chinese", "\u4f60\u597d"}};
  for (const auto& [name, unit] : units) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const Result<Ids> ids = tokenizer->encode(text, false);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_LT(seconds.count(), 30);
    RecordProperty(std::string(name) + "_megabytes_per_second",
                   std::to_string(1e-6 * static_cast<double>(text.size()) / seconds.count()));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, VariedTest,
                         testing::Values("llama3", "qwen2", "opt", "falcon", "metaspace", "llama2",
                                         "mistral", "phi3", "spm"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvlane
