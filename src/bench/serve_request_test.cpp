// Bodies as strict servers want them, and how a dialogue grows.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvlane {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

RequestFormat format(const RequestSettings& settings) {
  Result<RequestFormat> made = RequestFormat::create(settings);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

TEST(RequestFormat, OfIdsIsWhatOurServerTakes) {
  RequestSettings settings;
  settings.model = "tiny \"1\"";
  settings.top_k = 5;
  const std::vector<std::int32_t> ids = {0, 12, 4095};
  const std::string body = format(settings).body_with_ids(ids, 7);
  const Json object = Json::parse(body);
  EXPECT_EQ(object["prompt"], Json({0, 12, 4095}));
  EXPECT_EQ(object["max_tokens"], 7);
  EXPECT_EQ(object["model"], "tiny \"1\"");
  EXPECT_EQ(object["temperature"], 0);
  EXPECT_EQ(object["top_k"], 5);
  EXPECT_EQ(object["ignore_eos"], true);
  EXPECT_EQ(object["stream_options"]["include_usage"], true);
  EXPECT_FALSE(object.contains("top_p"));
  const auto parsed = parse_completion_request(Api::kCompletions, body);
  ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed));
  EXPECT_EQ(std::get<CompletionRequest>(parsed).prompt.ids, ids);
}

TEST(RequestFormat, LeavesOutWhatStrictServersRefuse) {
  RequestSettings settings;
  settings.ignore_eos = false;
  settings.return_token_ids = false;
  const Json object = Json::parse(format(settings).body_with_text("a \n\"b\"", 1));
  EXPECT_EQ(object["prompt"], "a \n\"b\"");
  EXPECT_FALSE(object.contains("ignore_eos"));
  EXPECT_FALSE(object.contains("return_token_ids"));
  EXPECT_FALSE(object.contains("model"));
}

TEST(RequestFormat, TakesFurtherFields) {
  RequestSettings settings;
  settings.extra_body = R"({"priority": 3, "temperature": 0.5})";
  const Json object = Json::parse(format(settings).body_with_ids({}, 1));
  EXPECT_EQ(object["priority"], 3);
  EXPECT_EQ(object["temperature"], 0.5);
  EXPECT_EQ(object["prompt"], Json::array());
  settings.extra_body = "[1]";
  EXPECT_THAT(RequestFormat::create(settings).status().message(), HasSubstr("not a JSON object"));
  settings.extra_body = "{";
  EXPECT_THAT(RequestFormat::create(settings).status().message(), HasSubstr("the extra body"));
}

TEST(Dialogue, OfIdsRepeatsEverythingBefore) {
  const RequestFormat ids = format({});
  Dialogue dialogue(ids);
  dialogue.ask(std::vector<std::int32_t>{1, 2});
  dialogue.answered(std::vector<std::int32_t>{3}, "three");
  dialogue.ask(std::vector<std::int32_t>{4});
  EXPECT_EQ(Json::parse(dialogue.body(5))["prompt"], Json({1, 2, 3, 4}));
}

TEST(Dialogue, OfTextRepeatsEverythingBefore) {
  RequestSettings settings;
  settings.text = true;
  const RequestFormat text = format(settings);
  Dialogue dialogue(text);
  dialogue.ask(std::vector<std::int32_t>{0});
  dialogue.answered({}, "answer ");
  dialogue.ask(std::vector<std::int32_t>{1, 64});
  EXPECT_EQ(Json::parse(dialogue.body(5))["prompt"], "the answer of the ");
}

TEST(Dialogue, OfAChatHasRoles) {
  RequestSettings settings;
  settings.api = Api::kChat;
  const RequestFormat chat = format(settings);
  Dialogue dialogue(chat);
  dialogue.ask(std::vector<std::int32_t>{0});
  dialogue.answered({}, "answer");
  dialogue.ask(std::vector<std::int32_t>{1});
  const Json messages = Json::parse(dialogue.body(5))["messages"];
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0], Json({{"role", "user"}, {"content", "the "}}));
  EXPECT_EQ(messages[1], Json({{"role", "assistant"}, {"content", "answer"}}));
  EXPECT_EQ(messages[2]["content"], "of ");
}

}  // namespace
}  // namespace kvlane
