// Forms of answers that a worker's tests do not meet: half characters, infinities, usage on the
// way.
// SPDX-License-Identifier: Apache-2.0
#include "server/openai_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "server/logprobs_json.h"
#include "server/worker_fixture.h"

namespace kvlane {
namespace {

using nlohmann::json;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LogprobsJson, OffsetsCountCharactersOfTheText) {
  const FakePrompter prompter;
  // "66 ", BOS, half a character twice, "67 ": the special token is not part of the text, and two
  // halves would be one character if the second were its rest.
  const std::vector<std::int32_t> tokens = {66, prompter.bos(), FakePrompter::kHalfCharacter, 67};
  const std::vector<TokenLogprobs> logprobs(tokens.size());
  std::int64_t characters = 10;
  const json object = completion_logprobs(tokens, logprobs, prompter, characters);
  EXPECT_EQ(object["tokens"], (json{"66 ", "<s>", R"(bytes:\xc3)", "67 "}));
  EXPECT_EQ(object["text_offset"], (json{10, 13, 13, 14}));
  EXPECT_EQ(characters, 17);
}

TEST(LogprobsJson, WhatJsonCannotSayIsSaidAsVllmDoes) {
  const FakePrompter prompter;
  const std::vector<std::int32_t> tokens = {66};
  const std::vector<TokenLogprobs> logprobs = {{-kInfinity, {{67, 0}, {68, -kInfinity}}}};
  std::int64_t characters = 0;
  const json completion = completion_logprobs(tokens, logprobs, prompter, characters);
  EXPECT_EQ(completion["token_logprobs"], (json{-9999.0}));
  // The token that was drawn is there too.
  EXPECT_EQ(completion["top_logprobs"][0],
            (json{{"66 ", -9999.0}, {"67 ", 0.0}, {"68 ", -9999.0}}));
  const json chat = chat_logprobs(tokens, logprobs, prompter);
  EXPECT_EQ(chat["content"][0]["logprob"], -9999.0);
  EXPECT_EQ(chat["content"][0]["top_logprobs"].size(), 2U);
}

TEST(LogprobsJson, ChatsTellTheBytesOfHalfCharacters) {
  const FakePrompter prompter;
  const std::vector<std::int32_t> tokens = {FakePrompter::kHalfCharacter};
  const json chat = chat_logprobs(tokens, std::vector<TokenLogprobs>(1), prompter);
  EXPECT_EQ(chat["content"][0]["bytes"], (json{0xc3}));
}

class CompletionFormatTest : public testing::Test {
 protected:
  static CompletionRequest request(Api api) {
    CompletionRequest request;
    request.api = api;
    request.stream = true;
    return request;
  }
  static std::vector<json> events(CompletionFormat& format, const Update& update) {
    std::vector<json> parsed;
    for (const std::string& event : events_of(format.events(update), update.finish.has_value())) {
      parsed.push_back(json::parse(event));
    }
    return parsed;
  }
  FakePrompter prompter_;
  AnswerHead head_{"id", "tiny", 5, 7};
};

TEST_F(CompletionFormatTest, TokensWithoutTextAreToldOnlyIfAskedFor) {
  Update held_back;
  held_back.tokens = {66};
  held_back.logprobs.resize(1);
  CompletionFormat plain(request(Api::kCompletions), prompter_, head_);
  EXPECT_TRUE(events(plain, held_back).empty());
  CompletionRequest with = request(Api::kCompletions);
  with.logprobs = 0;
  CompletionFormat logprobs(with, prompter_, head_);
  EXPECT_EQ(events(logprobs, held_back).size(), 1U);
  with = request(Api::kCompletions);
  with.return_token_ids = true;
  CompletionFormat ids(with, prompter_, head_);
  ASSERT_EQ(events(ids, held_back).size(), 1U);
}

TEST_F(CompletionFormatTest, OffsetsGoOnFromEventToEventForEachChoice) {
  CompletionRequest with = request(Api::kCompletions);
  with.n = 2;
  with.logprobs = 0;
  CompletionFormat format(with, prompter_, head_);
  Update update;
  update.tokens = {66};
  update.logprobs.resize(1);
  update.text = "66 ";
  const auto offset = [&](int choice) {
    update.choice = choice;
    return events(format, update)[0]["choices"][0]["logprobs"]["text_offset"][0].get<int>();
  };
  EXPECT_EQ(offset(0), 0);
  EXPECT_EQ(offset(0), 3);
  EXPECT_EQ(offset(1), 0);
  EXPECT_EQ(offset(0), 6);
}

TEST_F(CompletionFormatTest, UsageMayComeWithEveryEvent) {
  CompletionRequest with = request(Api::kCompletions);
  with.include_usage = true;
  with.continuous_usage = true;
  CompletionFormat format(with, prompter_, head_);
  Update update;
  update.tokens = {66, 67};
  update.text = "66 67 ";
  EXPECT_EQ(events(format, update)[0]["usage"],
            (json{{"prompt_tokens", 7}, {"completion_tokens", 2}, {"total_tokens", 9}}));
  EXPECT_EQ(events(format, update)[0]["usage"]["completion_tokens"], 4);
}

// Whatever the last update holds, the extension and [DONE] come.
TEST_F(CompletionFormatTest, TheEndIsToldWhenNothingElseIs) {
  Update end;
  end.finish.emplace();
  CompletionFormat plain(request(Api::kCompletions), prompter_, head_);
  const std::vector<json> alone = events(plain, end);
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(alone[0]["choices"], json::array());
  EXPECT_TRUE(alone[0].contains("kvlane"));
  CompletionRequest with = request(Api::kCompletions);
  with.include_usage = true;
  CompletionFormat usage(with, prompter_, head_);
  const std::vector<json> counted = events(usage, end);
  ASSERT_EQ(counted.size(), 1U);
  EXPECT_TRUE(counted[0].contains("usage") && counted[0].contains("kvlane"));
}

}  // namespace
}  // namespace kvlane
