// Tokenising and back, over a fake model of 1000 tokens: one for each byte.
// SPDX-License-Identifier: Apache-2.0
#include "server/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/fake_engine.h"

namespace kvlane {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const FakePrompter& prompter() {
  static const FakePrompter kPrompter(true, true);
  return kPrompter;
}

json answered(const ApiResult<std::string>& result) {
  const ApiError* const error = std::get_if<ApiError>(&result);
  if (error != nullptr) ADD_FAILURE() << error->message;
  return error != nullptr ? json() : json::parse(std::get<std::string>(result));
}
json tokenized(std::string_view body) { return answered(tokenize(body, prompter(), "tiny")); }
json detokenized(std::string_view body) { return answered(detokenize(body, prompter(), "tiny")); }

TEST(Tokenize, TellsIdsAndTheContext) {
  EXPECT_EQ(
      tokenized(R"({"prompt": "AB"})"),
      (json{
          {"count", 3}, {"max_model_len", 100}, {"tokens", {7, 65, 66}}, {"token_strs", nullptr}}));
  EXPECT_EQ(
      tokenized(R"({"prompt": "AB", "add_special_tokens": false, "model": "tiny"})")["tokens"],
      (json{65, 66}));
  EXPECT_EQ(tokenized(R"({"prompt": ""})")["count"], 1);
  EXPECT_EQ(tokenized(R"({"prompt": "A", "return_token_strs": true})")["token_strs"],
            (json{"<s>", "65 "}));
}

TEST(Tokenize, TakesChats) {
  constexpr std::string_view kMessages = R"("messages": [{"role": "user", "content": "A"}])";
  const auto tokens = [&](const std::string& more) {
    return tokenized("{" + std::string(kMessages) + more + "}")["tokens"];
  };
  EXPECT_EQ(tokens(""), (json{65, '>'}));
  EXPECT_EQ(tokens(R"(, "add_generation_prompt": false, "add_special_tokens": false)"), (json{65}));
  EXPECT_EQ(tokens(R"(, "chat_template_kwargs": {}, "tools": null)"), (json{65, '>'}));
}

TEST(Tokenize, RefusesByName) {
  const auto error = [](std::string_view body) {
    return std::get<ApiError>(tokenize(body, prompter(), "tiny"));
  };
  EXPECT_THAT(error("{").message, HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[]").message, HasSubstr("JSON object"));
  EXPECT_EQ(error("{}").param, "prompt");
  EXPECT_EQ(error(R"({"prompt": null})").param, "prompt");
  EXPECT_EQ(error(R"({"prompt": ["a"]})").param, "prompt");
  EXPECT_EQ(error(R"({"prompt": "a", "messages": [{"role": "user", "content": "A"}]})").param,
            "prompt");
  EXPECT_EQ(error(R"({"prompt": "a", "promt": "b"})").param, "promt");
  EXPECT_EQ(error(R"({"prompt": "a", "return_token_strs": 1})").param, "return_token_strs");
  EXPECT_EQ(error(R"({"prompt": "a", "add_generation_prompt": true})").param,
            "add_generation_prompt");
  EXPECT_EQ(error(R"({"prompt": "a", "tools": [{}]})").param, "tools");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "A"}],
                      "add_special_tokens": true})")
                .param,
            "add_special_tokens");
  const ApiError model = error(R"({"prompt": "a", "model": "other"})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(model.code, "model_not_found");
  const ApiError longer = error(R"({"prompt": ")" + std::string(kTokenizeTokensMax, 'a') + "\"}");
  EXPECT_THAT(longer.message, HasSubstr("has 1048577 tokens"));
}

TEST(Detokenize, JoinsTheBytesOfTokens) {
  EXPECT_EQ(detokenized(R"({"tokens": [7, 65, 66]})"), (json{{"prompt", "<s>65 66 "}}));
  EXPECT_EQ(detokenized(R"({"tokens": [], "model": "tiny"})"), (json{{"prompt", ""}}));
  EXPECT_EQ(detokenized(R"({"tokens": [195]})"), (json{{"prompt", "\xef\xbf\xbd"}}));
}

TEST(Detokenize, RefusesByName) {
  const auto error = [](std::string_view body) {
    return std::get<ApiError>(detokenize(body, prompter(), "tiny"));
  };
  EXPECT_EQ(error("{}").param, "tokens");
  EXPECT_EQ(error(R"({"tokens": "a"})").param, "tokens");
  EXPECT_EQ(error(R"({"tokens": [-1]})").param, "tokens");
  EXPECT_EQ(error(R"({"tokens": [1.5]})").param, "tokens");
  EXPECT_THAT(error(R"({"tokens": [1000]})").message, HasSubstr("outside the vocabulary of 1000"));
  EXPECT_EQ(error(R"({"tokens": [1], "skip": true})").param, "skip");
  EXPECT_EQ(error(R"({"tokens": [1], "model": "other"})").status, 404);
}

}  // namespace
}  // namespace kvlane
