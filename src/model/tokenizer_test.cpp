// The tokenizer against the `tokenizers` package, on fixtures made with it, and on hostile input.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/test_paths.h"
#include "model/tokenizer_fixture.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

Json fixture_json(const std::string& name) {
  return Json::parse(read_tokenizer_fixture(name + ".json"));
}

// The error of a tokenizer.json made from the fixture `name` by `change`.
template <class Change>
Status error_after(const std::string& name, Change change) {
  Json document = fixture_json(name);
  change(document);
  const Result<Tokenizer> tokenizer = Tokenizer::parse(document.dump());
  return tokenizer.ok() ? Status() : tokenizer.status();
}

Tokenizer llama3() {
  Result<Tokenizer> tokenizer = parse_tokenizer_fixture("llama3");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

TEST(TokenizerTest, KnowsItsTokens) {
  const Tokenizer tokenizer = llama3();
  const std::int32_t bos = tokenizer.find("<|begin_of_text|>");
  ASSERT_GE(bos, 256);
  EXPECT_TRUE(tokenizer.is_special(bos));
  EXPECT_EQ(tokenizer.token_bytes(bos), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer.decode(Ids{bos}), "");

  const std::int32_t world = tokenizer.find(" world");
  ASSERT_GE(world, 0);
  EXPECT_FALSE(tokenizer.is_special(world));
  EXPECT_EQ(tokenizer.token_bytes(world), " world");
  EXPECT_EQ(tokenizer.find("no such token"), -1);
  EXPECT_EQ(tokenizer.find(""), -1);

  EXPECT_EQ(tokenizer.token_bytes(tokenizer.vocab_size() - 1), "<|eot_id|>");
  for (const std::int32_t id : {-1, tokenizer.vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_EQ(tokenizer.decode(Ids{id}), "");
  }
}

TEST(TokenizerTest, InvalidUtf8CountsAsReplacementCharacters) {
  const Tokenizer tokenizer = llama3();
  const Result<Ids> ids = tokenizer.encode("abc\xC3\xA9 \xE2\x82<|eot_id|>\xFF");
  const Result<Ids> expected = tokenizer.encode("abc\u00e9 \ufffd<|eot_id|>\ufffd");
  ASSERT_TRUE(ids.ok() && expected.ok());
  EXPECT_EQ(*ids, *expected);
}

TEST(TokenizerTest, RefusesTooLongATextUnread) {
  const Tokenizer tokenizer = llama3();
  const Result<Ids> ids = tokenizer.encode(std::string(kTextBytesMax + 1, 'a'));
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("33554433 bytes"), std::string::npos);
}

// Words as long as the text. That split rules bear them is tested in split_rule_test.cpp.
TEST(TokenizerTest, EncodesLongRuns) {
  const Tokenizer tokenizer = llama3();
  for (const char* unit : {" ", "\n", "\t ", "a", "!", "\xE3\x80\x80", "\xCC\x81", "7"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    const Result<Ids> ids = tokenizer.encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(tokenizer.decode(*ids), text);
  }
}

TEST(TokenizerTest, EncodesFromSeveralThreads) {
  const Tokenizer tokenizer = llama3();
  const std::string text = "It's the same text, 12345 times, für alle Threads.\n\n";
  const Result<Ids> expected = tokenizer.encode(text);
  ASSERT_TRUE(expected.ok());
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const Result<Ids> ids = tokenizer.encode(text);
        count += ids.ok() && *ids == *expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

TEST(TokenizerTest, BundledModelsKeepTheirText) {
  const auto directory = std::filesystem::path(kSourceDir) / "models" / "kvlane-tiny-gqa";
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << directory << " is not there";
  const Result<Tokenizer> tokenizer = Tokenizer::load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_EQ(tokenizer->find("<|endoftext|>"), 0);
  const std::string text =
      "The old man walked down to the harbour, and it wasn't raining. 1984! \xC3\xA9";
  const Result<Ids> ids = tokenizer->encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(tokenizer->decode(*ids), text);
  EXPECT_LT(ids->size(), text.size() / 2);
}

TEST(TokenizerTest, MissingFileIsNotFound) {
  const Result<Tokenizer> tokenizer = Tokenizer::load("no/such/directory");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), Code::kNotFound);
}

// One change of a good file, and what the error must be and say.
struct BadCase {
  const char* name;
  void (*change)(Json&);
  Code code;
  const char* words;
};

void set_part(Json& document, const char* part, const char* text) {
  document[part] = Json::parse(text);
}

const BadCase kBadCases[] = {
    {"no_object", [](Json& d) { d = Json::array(); }, Code::kCorrupt, "not a JSON object"},
    {"version", [](Json& d) { d["version"] = "2.0"; }, Code::kUnsupported, "version \"2.0\""},
    {"truncation", [](Json& d) { set_part(d, "truncation", R"({"max_length":3})"); },
     Code::kUnsupported, "'truncation'"},
    {"padding", [](Json& d) { set_part(d, "padding", "{}"); }, Code::kUnsupported, "'padding'"},
    {"normalizer", [](Json& d) { set_part(d, "normalizer", R"({"type":"Lowercase"})"); },
     Code::kUnsupported, "normalizer \"Lowercase\""},
    {"no_model", [](Json& d) { d.erase("model"); }, Code::kCorrupt, "no 'model'"},
    {"unigram", [](Json& d) { d["model"]["type"] = "Unigram"; }, Code::kUnsupported,
     "model \"Unigram\""},
    {"dropout", [](Json& d) { d["model"]["dropout"] = 0.1; }, Code::kUnsupported, "dropout 0.1"},
    {"suffix", [](Json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }, Code::kUnsupported,
     "end_of_word_suffix \"</w>\""},
    {"no_vocabulary", [](Json& d) { d["model"].erase("vocab"); }, Code::kCorrupt, "'vocab'"},
    {"id_text", [](Json& d) { d["model"]["vocab"]["a"] = "7"; }, Code::kCorrupt, "token id \"7\""},
    {"id_negative", [](Json& d) { d["model"]["vocab"]["a"] = -1; }, Code::kCorrupt, "token id -1"},
    {"id_fraction", [](Json& d) { d["model"]["vocab"]["a"] = 1.5; }, Code::kCorrupt,
     "token id 1.5"},
    {"id_huge", [](Json& d) { d["model"]["vocab"]["a"] = 1U << 20; }, Code::kCorrupt,
     "token id 1048576"},
    {"id_twice", [](Json& d) { d["model"]["vocab"]["a"] = d["model"]["vocab"]["b"]; },
     Code::kCorrupt, "is given twice"},
    {"byte_missing",
     [](Json& d) {
       // Renamed to something that is no byte; the merges with it go.
       Json& vocabulary = d["model"]["vocab"];
       vocabulary["<0x00>"] = vocabulary["\u0100"];
       vocabulary.erase("\u0100");
     },
     Code::kUnsupported, "no token for the byte 0"},
    {"merge_of_one", [](Json& d) { d["model"]["merges"][0] = "ab"; }, Code::kCorrupt, "\"ab\""},
    {"merge_of_three", [](Json& d) { d["model"]["merges"][0] = "a b c"; }, Code::kCorrupt,
     "\"a b c\""},
    {"merge_unknown",
     [](Json& d) {
       d["model"]["merges"][0] = {"a", "Z"};
     },
     Code::kCorrupt, "not in the vocabulary"},
    {"merges_object", [](Json& d) { d["model"]["merges"] = Json::object(); }, Code::kCorrupt,
     "'merges'"},
    {"ignore_merges", [](Json& d) { d["model"]["ignore_merges"] = 1; }, Code::kCorrupt,
     "'ignore_merges' is 1"},
    {"added_list", [](Json& d) { d["added_tokens"] = 3; }, Code::kCorrupt, "'added_tokens'"},
    {"added_empty", [](Json& d) { d["added_tokens"][0]["content"] = ""; }, Code::kUnsupported,
     "0 bytes"},
    {"added_id", [](Json& d) { d["added_tokens"][1]["id"] = 9999; }, Code::kUnsupported,
     "has id 9999"},
    {"added_twice", [](Json& d) { d["added_tokens"].push_back(d["added_tokens"][0]); },
     Code::kCorrupt, "is there twice"},
    {"single_word", [](Json& d) { d["added_tokens"][0]["single_word"] = 3; }, Code::kCorrupt,
     "'single_word' is 3"},
    {"no_pretokenizer", [](Json& d) { d["pre_tokenizer"] = nullptr; }, Code::kUnsupported,
     "decoder \"ByteLevel\" is not supported without the pre_tokenizer 'ByteLevel'"},
    {"pre_tokenizer", [](Json& d) { set_part(d, "pre_tokenizer", R"({"type":"Whitespace"})"); },
     Code::kUnsupported, "pre_tokenizer \"Whitespace\""},
    {"two_byte_levels",
     [](Json& d) {
       d["pre_tokenizer"]["pretokenizers"].push_back(d["pre_tokenizer"]["pretokenizers"][1]);
     },
     Code::kUnsupported, "'ByteLevel' after 'ByteLevel'"},
    {"split_string",
     [](Json& d) {
       d["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", ""}};
     },
     Code::kUnsupported, "neither a Regex nor a String"},
    {"split_behavior",
     [](Json& d) { d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Doubled"; },
     Code::kUnsupported, "behavior \"Doubled\""},
    {"split_invert", [](Json& d) { d["pre_tokenizer"]["pretokenizers"][0]["invert"] = 1; },
     Code::kCorrupt, "'invert' is 1"},
    {"split_rule",
     [](Json& d) {
       d["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "\\bx"}};
     },
     Code::kUnsupported, "the escape '\\b'"},
    {"post_processor",
     [](Json& d) { set_part(d, "post_processor", R"({"type":"BertProcessing"})"); },
     Code::kUnsupported, "post_processor \"BertProcessing\""},
    {"template_b",
     [](Json& d) { d["post_processor"]["processors"][1]["single"][1]["Sequence"]["id"] = "B"; },
     Code::kUnsupported, "template piece"},
    {"template_without_text",
     [](Json& d) { d["post_processor"]["processors"][1]["single"].erase(1); }, Code::kUnsupported,
     "does not hold the text once"},
    {"template_unknown",
     [](Json& d) { d["post_processor"]["processors"][1]["special_tokens"] = Json::object(); },
     Code::kCorrupt, "<|begin_of_text|>"},
    {"template_id",
     [](Json& d) {
       d["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {9999};
     },
     Code::kCorrupt, "9999 is not in the vocabulary"},
    {"decoder", [](Json& d) { set_part(d, "decoder", R"({"type":"WordPiece"})"); },
     Code::kUnsupported, "decoder \"WordPiece\""},
    {"no_decoder", [](Json& d) { d.erase("decoder"); }, Code::kUnsupported, "decoder"},
};

// The same of a tokenizer in sentencepiece's style.
const BadCase kBadSentencePieceCases[] = {
    {"unknown", [](Json& d) { d["model"]["unk_token"] = "<what>"; }, Code::kCorrupt,
     "the unk_token \"<what>\" is not in the vocabulary"},
    {"fuse_unk", [](Json& d) { d["model"]["fuse_unk"] = "yes"; }, Code::kCorrupt, "'fuse_unk'"},
    {"normalizer_regex",
     [](Json& d) {
       d["normalizer"]["normalizers"][1]["pattern"] = {{"Regex", " +"}};
     },
     Code::kUnsupported, "normalizer 'Replace' is not a String"},
    {"normalizer_empty", [](Json& d) { d["normalizer"]["normalizers"][0]["prepend"] = ""; },
     Code::kUnsupported, "'prepend' has 0 bytes"},
    {"normalizer_long",
     [](Json& d) { d["normalizer"]["normalizers"][1]["content"] = std::string(65, 'x'); },
     Code::kUnsupported, "'content' has 65 bytes"},
    {"mark", [](Json& d) { set_part(d, "pre_tokenizer", R"({"type":"Metaspace"})"); },
     Code::kCorrupt, "'replacement' is null"},
    {"long_mark",
     [](Json& d) { set_part(d, "pre_tokenizer", R"({"type":"Metaspace","replacement":"__"})"); },
     Code::kCorrupt, "is not one character"},
    {"scheme",
     [](Json& d) {
       set_part(d, "pre_tokenizer",
                R"({"type":"Metaspace","replacement":"_","prepend_scheme":"last"})");
     },
     Code::kUnsupported, "prepend_scheme \"last\""},
    {"contradiction",
     [](Json& d) {
       set_part(d, "pre_tokenizer",
                R"({"type":"Metaspace","replacement":"_","add_prefix_space":false})");
     },
     Code::kCorrupt, "contradicts"},
    {"byte_level", [](Json& d) { set_part(d, "decoder", R"({"type":"ByteLevel"})"); },
     Code::kUnsupported, "decoder \"ByteLevel\""},
    {"strip_end", [](Json& d) { d["decoder"]["decoders"][3]["stop"] = 1; }, Code::kUnsupported,
     "'Strip' of something else"},
    {"strip_tokens", [](Json& d) { d["decoder"]["decoders"].erase(2); }, Code::kUnsupported,
     "'Strip' without 'Fuse'"},
    {"decoder_order",
     [](Json& d) { std::swap(d["decoder"]["decoders"][0], d["decoder"]["decoders"][1]); },
     Code::kUnsupported, "decoder 'Replace' at this place"},
    {"wordpiece", [](Json& d) { d["decoder"]["decoders"][0]["type"] = "WordPiece"; },
     Code::kUnsupported, "decoder \"WordPiece\""},
};

void expect_error(const Status& status, const BadCase& expected) {
  EXPECT_EQ(status.code(), expected.code) << status.message();
  EXPECT_NE(status.message().find(expected.words), std::string::npos) << status.message();
}

class BadFileTest : public testing::TestWithParam<BadCase> {};
class BadSentencePieceFileTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadFileTest, IsOneClearError) {
  expect_error(error_after("llama3", GetParam().change), GetParam());
}

TEST_P(BadSentencePieceFileTest, IsOneClearError) {
  expect_error(error_after("llama2", GetParam().change), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, BadSentencePieceFileTest,
                         testing::ValuesIn(kBadSentencePieceCases),
                         [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(Tokenizer, BadFileTest, testing::ValuesIn(kBadCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TokenizerTest, EveryPrefixOfAFileIsRefused) {
  const std::string text = fixture_json("qwen2").dump();
  for (std::size_t bytes = 0; bytes < text.size(); bytes += 1 + text.size() / 200) {
    const Result<Tokenizer> tokenizer = Tokenizer::parse(std::string_view(text).substr(0, bytes));
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.status().code(), Code::kCorrupt) << tokenizer.status().message();
  }
}

TEST(TokenizerTest, NumbersOutOfRangeAreRefused) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse("6e411");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), Code::kCorrupt);
  EXPECT_NE(tokenizer.status().message().find("out of range"), std::string::npos);
}

TEST(TokenizerTest, DeepNestingIsRefused) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(std::string(1'000'000, '['));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace kvlane
