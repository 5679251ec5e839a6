// Requests: what is accepted, and what is refused by name.
// SPDX-License-Identifier: Apache-2.0
#include "server/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "server/fake_engine.h"
#include "server/json_text.h"

namespace kvlane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CompletionRequest accepted(Api api, std::string_view body) {
  const ApiResult<CompletionRequest> parsed = parse_completion_request(api, body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<CompletionRequest>(parsed);
}

ApiError refused(Api api, std::string_view body) {
  const ApiResult<CompletionRequest> parsed = parse_completion_request(api, body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    EXPECT_EQ(error->status, 400) << body;
    return *error;
  }
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

TEST(CompletionRequestTest, ReadsEveryField) {
  const CompletionRequest request = accepted(Api::kCompletions, R"({
      "model": "m", "prompt": "Once", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
      "top_k": 40, "seed": 18446744073709551615, "stop": ["a", "b"],
      "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
      "return_token_ids": true, "user": "me", "n": 3, "best_of": 3, "min_tokens": 2, "min_p": 0.1,
      "presence_penalty": -2, "frequency_penalty": 1.5, "repetition_penalty": 1.25,
      "logit_bias": {"17": -100, "4": 2.5}, "stop_token_ids": [8, 9], "logprobs": 4,
      "cache_salt": "tenant", "priority": -3})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.prompt.text, "Once");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.seed, UINT64_MAX);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(request.ignore_eos && request.stream && request.include_usage);
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_FALSE(request.continuous_usage);
  EXPECT_FALSE(request.kv_transfer);
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1F);
  EXPECT_FLOAT_EQ(request.sampling.presence_penalty, -2);
  EXPECT_FLOAT_EQ(request.sampling.frequency_penalty, 1.5F);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.25F);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(request.sampling.logit_bias[0].token, 17);
  EXPECT_FLOAT_EQ(request.sampling.logit_bias[0].bias, -100);
  EXPECT_EQ(request.sampling.logit_bias[1].token, 4);
  EXPECT_FLOAT_EQ(request.sampling.logit_bias[1].bias, 2.5F);
  EXPECT_THAT(request.stop_tokens, ElementsAre(8, 9));
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_EQ(request.cache_salt, "tenant");
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.client, "me");
}

TEST(CompletionRequestTest, PromptsHaveFourForms) {
  EXPECT_EQ(accepted(Api::kCompletions, R"({"prompt": "text"})").prompt.text, "text");
  EXPECT_EQ(accepted(Api::kCompletions, R"({"prompt": ["text"]})").prompt.text, "text");
  EXPECT_THAT(accepted(Api::kCompletions, R"({"prompt": [1, 2]})").prompt.ids, ElementsAre(1, 2));
  EXPECT_THAT(accepted(Api::kCompletions, R"({"prompt": [[1, 2]]})").prompt.ids, ElementsAre(1, 2));
  EXPECT_EQ(accepted(Api::kCompletions, R"({"prompt": ""})").prompt.text, "");
  EXPECT_TRUE(accepted(Api::kCompletions, R"({"prompt": []})").prompt.ids.empty());
}

TEST(CompletionRequestTest, NullMeansAbsentAndNeutralValuesPass) {
  const CompletionRequest request = accepted(Api::kCompletions, R"({
      "prompt": "x", "max_tokens": null, "stop": null, "stream": null, "stream_options": null,
      "seed": null, "logprobs": null, "suffix": null, "n": 1, "best_of": 1, "echo": false,
      "presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0,
      "logit_bias": {}, "min_tokens": 0, "kv_transfer_params": null})");
  EXPECT_FALSE(request.max_tokens);
  EXPECT_TRUE(request.stop.empty());
  EXPECT_EQ(request.sampling.top_k, 0);
}

TEST(CompletionRequestTest, ChatsAskForLogprobsInTheirOwnWay) {
  const auto logprobs = [](const std::string& fields) {
    return accepted(Api::kChat, R"({"messages": [{"role": "user", "content": "x"}])" + fields + "}")
        .logprobs;
  };
  EXPECT_EQ(logprobs(""), std::nullopt);
  EXPECT_EQ(logprobs(R"(, "logprobs": true)"), 0);
  EXPECT_EQ(logprobs(R"(, "logprobs": true, "top_logprobs": 20)"), 20);
  EXPECT_EQ(logprobs(R"(, "logprobs": false, "top_logprobs": 0)"), std::nullopt);
  EXPECT_EQ(logprobs(R"(, "top_logprobs": 0)"), std::nullopt);
  EXPECT_EQ(accepted(Api::kCompletions, R"({"prompt": "x", "logprobs": 0})").logprobs, 0);
}

TEST(CompletionRequestTest, AnEmptyUserIsNone) {
  EXPECT_EQ(accepted(Api::kCompletions, R"({"prompt": "x", "user": ""})").client, "");
}

TEST(CompletionRequestTest, UsageMayBeAskedForInEveryEvent) {
  const CompletionRequest request = accepted(Api::kCompletions, R"({"prompt": "x", "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true}})");
  EXPECT_TRUE(request.include_usage && request.continuous_usage);
}

TEST(CompletionRequestTest, ChatsHaveMessages) {
  const CompletionRequest request = accepted(Api::kChat, R"({"messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "tool_calls": null}],
      "max_completion_tokens": 9, "stop": "end"})");
  ASSERT_EQ(request.messages.size(), 3U);
  EXPECT_EQ(request.messages[1].content, "a\nb");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_THAT(request.stop, ElementsAre("end"));
}

struct BadCase {
  const char* body;
  const char* param;    // of the error
  const char* message;  // a part of it
};

class BadCompletion : public testing::TestWithParam<BadCase> {};
TEST_P(BadCompletion, IsRefusedByName) {
  const ApiError error = refused(Api::kCompletions, GetParam().body);
  EXPECT_EQ(error.param, GetParam().param) << error.message;
  EXPECT_THAT(error.message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadCompletion,
    testing::Values(
        BadCase{"", "", "not valid JSON"}, BadCase{"{", "", "not valid JSON"},
        BadCase{R"({"prompt": "x"} trailing)", "", "not valid JSON"},
        BadCase{"{\"prompt\": \"\xff\xfe\"}", "", "UTF-8"},
        BadCase{"{\"prompt\": \"\xc3\"}", "", "UTF-8"},
        BadCase{R"({"prompt": "\ud800"})", "", "not valid JSON"},
        BadCase{R"({"temperature": 1e999})", "", "not valid JSON"},
        BadCase{"[1]", "", "must be a JSON object"}, BadCase{"null", "", "must be a JSON object"},
        BadCase{"{}", "prompt", "missing"}, BadCase{R"({"prompt": null})", "prompt", "missing"},
        BadCase{R"({"prompt": 5})", "prompt", "string or an array"},
        BadCase{R"({"prompt": ["a", "b"]})", "prompt", "holds 2 prompts"},
        BadCase{R"({"prompt": [[1], [2]]})", "prompt", "holds 2 prompts"},
        BadCase{R"({"prompt": [1, "a"]})", "prompt", "\"a\""},
        BadCase{R"({"prompt": [1, 2.5]})", "prompt", "2.5"},
        BadCase{R"({"prompt": [-1]})", "prompt", "-1"},
        BadCase{R"({"prompt": [4294967297]})", "prompt", "4294967297"},
        BadCase{R"({"prompt": [18446744073709551615]})", "prompt", "18446744073709551615"},
        BadCase{R"({"prompt": [{}]})", "prompt", "token ids"},
        BadCase{R"({"prompt": "x", "max_tokenz": 5})", "max_tokenz", "Unknown field"},
        BadCase{R"({"prompt": "x", "max_tokenz": null})", "max_tokenz", "Unknown field"},
        BadCase{R"({"prompt": "x", "messages": []})", "messages", "Unknown field"},
        BadCase{R"({"prompt": "x", "model": 5})", "model", "string"},
        BadCase{R"({"prompt": "x", "max_tokens": 0})", "max_tokens", "from 1"},
        BadCase{R"({"prompt": "x", "max_tokens": -5})", "max_tokens", "-5"},
        BadCase{R"({"prompt": "x", "max_tokens": 1.5})", "max_tokens", "1.5"},
        BadCase{R"({"prompt": "x", "max_tokens": "5"})", "max_tokens", "integer"},
        BadCase{R"({"prompt": "x", "max_tokens": 99999999999})", "max_tokens", "99999999999"},
        BadCase{R"({"prompt": "x", "max_tokens": 5, "max_completion_tokens": 6})", "max_tokens",
                "differs"},
        BadCase{R"({"prompt": "x", "temperature": -0.1})", "temperature", "0 to 2"},
        BadCase{R"({"prompt": "x", "temperature": 2.1})", "temperature", "0 to 2"},
        BadCase{R"({"prompt": "x", "temperature": "hot"})", "temperature", "0 to 2"},
        BadCase{R"({"prompt": "x", "top_p": 0})", "top_p", "above 0"},
        BadCase{R"({"prompt": "x", "top_p": 1.01})", "top_p", "at most 1"},
        BadCase{R"({"prompt": "x", "top_p": 1e-300})", "top_p", "above 0"},
        BadCase{R"({"prompt": "x", "top_k": -2})", "top_k", "-2"},
        BadCase{R"({"prompt": "x", "seed": 1.0})", "seed", "integer"},
        BadCase{R"({"prompt": "x", "stop": [""]})", "stop", "1 to 256"},
        BadCase{R"({"prompt": "x", "stop": [5]})", "stop", "string"},
        BadCase{R"({"prompt": "x", "stop": {"a": 1}})", "stop", "string"},
        BadCase{R"({"prompt": "x", "stop": ["1","2","3","4","5","6","7","8","9","10","11","12",
                    "13","14","15","16","17"]})",
                "stop", "17"},
        BadCase{R"({"prompt": "x", "stream": 1})", "stream", "true or false"},
        BadCase{R"({"prompt": "x", "stream_options": {"include_usage": true}})", "stream_options",
                "only allowed when 'stream'"},
        BadCase{R"({"prompt": "x", "stream": true, "stream_options": {"chunk": 1}})",
                "stream_options.chunk", "not supported"},
        BadCase{R"({"prompt": "x", "stream": true,
                    "stream_options": {"continuous_usage_stats": 1}})",
                "stream_options.continuous_usage_stats", "true or false"}));

INSTANTIATE_TEST_SUITE_P(
    Sampling, BadCompletion,
    testing::Values(
        BadCase{R"({"prompt": "x", "n": 0})", "n", "1 to 128, not 0"},
        BadCase{R"({"prompt": "x", "n": 129})", "n", "1 to 128, not 129"},
        BadCase{R"({"prompt": "x", "n": 1.0})", "n", "integer"},
        BadCase{R"({"prompt": "x", "n": 2, "best_of": 3})", "best_of", "must equal 'n'"},
        BadCase{R"({"prompt": "x", "best_of": 3})", "best_of", "which is 1"},
        BadCase{R"({"prompt": "x", "best_of": "3"})", "best_of", "integer"},
        BadCase{R"({"prompt": "x", "logprobs": 21})", "logprobs", "0 to 20"},
        BadCase{R"({"prompt": "x", "logprobs": -1})", "logprobs", "0 to 20"},
        BadCase{R"({"prompt": "x", "logprobs": true})", "logprobs", "integer"},
        BadCase{R"({"prompt": "x", "top_logprobs": 1})", "top_logprobs", "not supported"},
        BadCase{R"({"prompt": "x", "min_tokens": -1})", "min_tokens", "-1"},
        BadCase{R"({"prompt": "x", "min_p": 1.5})", "min_p", "0 to 1"},
        BadCase{R"({"prompt": "x", "min_p": -0.5})", "min_p", "0 to 1"},
        BadCase{R"({"prompt": "x", "presence_penalty": 2.5})", "presence_penalty", "-2 to 2"},
        BadCase{R"({"prompt": "x", "frequency_penalty": "a"})", "frequency_penalty", "-2 to 2"},
        BadCase{R"({"prompt": "x", "repetition_penalty": 0})", "repetition_penalty", "above 0"},
        BadCase{R"({"prompt": "x", "repetition_penalty": 1e-300})", "repetition_penalty",
                "above 0"},
        BadCase{R"({"prompt": "x", "repetition_penalty": 2.5})", "repetition_penalty", "most 2"},
        BadCase{R"({"prompt": "x", "logit_bias": [1]})", "logit_bias", "an object"},
        BadCase{R"({"prompt": "x", "logit_bias": {"a": 1}})", "logit_bias", "\"a\""},
        BadCase{R"({"prompt": "x", "logit_bias": {"": 1}})", "logit_bias", "not a token id"},
        BadCase{R"({"prompt": "x", "logit_bias": {"-1": 1}})", "logit_bias", "not a token id"},
        BadCase{R"({"prompt": "x", "logit_bias": {"1 ": 1}})", "logit_bias", "not a token id"},
        BadCase{R"({"prompt": "x", "logit_bias": {"2147483648": 1}})", "logit_bias",
                "not a token id"},
        BadCase{R"({"prompt": "x", "logit_bias": {"5": 101}})", "logit_bias.5", "-100 to 100"},
        BadCase{R"({"prompt": "x", "logit_bias": {"5": null}})", "logit_bias.5", "number"},
        BadCase{R"({"prompt": "x", "stop_token_ids": 5})", "stop_token_ids", "array"},
        BadCase{R"({"prompt": "x", "stop_token_ids": [-5]})", "stop_token_ids", "-5"},
        BadCase{R"({"prompt": "x", "cache_salt": ""})", "cache_salt", "1 to 256"},
        BadCase{R"({"prompt": "x", "cache_salt": 5})", "cache_salt", "string"},
        BadCase{R"({"prompt": "x", "priority": 2147483648})", "priority", "2147483648"},
        BadCase{R"({"prompt": "x", "priority": "high"})", "priority", "integer"},
        BadCase{R"({"prompt": "x", "user": 5})", "user", "string"},
        BadCase{R"({"prompt": "x", "echo": true})", "echo", "not supported"},
        BadCase{R"({"prompt": "x", "suffix": "y"})", "suffix", "not supported"},
        BadCase{R"({"prompt": "x", "prompt_logprobs": 1})", "prompt_logprobs", "not supported"},
        BadCase{R"({"prompt": "x", "use_beam_search": true})", "use_beam_search", "not supported"},
        BadCase{R"({"prompt": "x", "response_format": {"type": "json_object"}})", "response_format",
                "not supported"},
        BadCase{R"({"prompt": "x", "tools": [{"type": "function"}]})", "tools", "not supported"},
        BadCase{R"({"prompt": "x", "kv_transfer_params": 1})", "kv_transfer_params", "object"}));

class BadChat : public testing::TestWithParam<BadCase> {};
TEST_P(BadChat, IsRefusedByName) {
  const ApiError error = refused(Api::kChat, GetParam().body);
  EXPECT_EQ(error.param, GetParam().param) << error.message;
  EXPECT_THAT(error.message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadChat,
    testing::Values(BadCase{"{}", "messages", "missing"},
                    BadCase{R"({"messages": []})", "messages", "1 to"},
                    BadCase{R"({"messages": "hi"})", "messages", "array"},
                    BadCase{R"({"messages": [5]})", "messages[0]", "object"},
                    BadCase{R"({"messages": [{"content": "x"}]})", "messages[0].role", "missing"},
                    BadCase{R"({"messages": [{"role": "user"}]})", "messages[0].content",
                            "missing"},
                    BadCase{R"({"messages": [{"role": "user", "content": null}]})",
                            "messages[0].content", "string or an array"},
                    BadCase{R"({"messages": [{"role": "robot", "content": "x"}]})",
                            "messages[0].role", "robot"},
                    BadCase{R"({"messages": [{"role": "user", "content": "x", "name": "n"}]})",
                            "messages[0].name", "not supported"},
                    BadCase{R"({"messages": [{"role": "user", "content": "x"}], "prompt": "y"})",
                            "prompt", "Unknown field"},
                    BadCase{R"({"messages": [{"role": "user",
                    "content": [{"type": "image_url", "image_url": {}}]}]})",
                            "messages[0].content[0]", "image_url"},
                    BadCase{R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
                            "messages[0].content[0]", "text"},
                    BadCase{R"({"messages": [{"role": "user", "content": ["x"]}]})",
                            "messages[0].content[0]", "type"},
                    BadCase{R"({"messages": [{"role": "user", "content": "x"}], "logprobs": 3})",
                            "logprobs", "true or false"},
                    BadCase{R"({"messages": [{"role": "user", "content": "x"}],
                    "logprobs": true, "top_logprobs": 21})",
                            "top_logprobs", "0 to 20"},
                    BadCase{R"({"messages": [{"role": "user", "content": "x"}],
                    "top_logprobs": 2})",
                            "top_logprobs", "when 'logprobs' is true"}));

TEST(CompletionRequestTest, LongListsAndNamesAreRefused) {
  std::string biases;
  std::string ids;
  for (int i = 0; i < 1025; ++i) {
    biases += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
    if (i < 65) ids += (i > 0 ? "," : "") + std::to_string(i);
  }
  EXPECT_EQ(refused(Api::kCompletions, R"({"prompt": "x", "logit_bias": {)" + biases + "}}").param,
            "logit_bias");
  EXPECT_THAT(
      refused(Api::kCompletions, R"({"prompt": "x", "stop_token_ids": [)" + ids + "]}").message,
      HasSubstr("holds 65 token ids"));
  const std::string name(257, 'a');
  EXPECT_EQ(refused(Api::kCompletions, R"({"prompt": "x", "cache_salt": ")" + name + "\"}").param,
            "cache_salt");
  EXPECT_EQ(refused(Api::kCompletions, R"({"prompt": "x", "user": ")" + name + "\"}").param,
            "user");
}

TEST(CompletionRequestTest, DeepNestingIsRefusedWithoutRecursion) {
  for (const std::size_t depth : {100U, 200000U}) {
    const std::string nested(depth, '[');
    const ApiError error = refused(Api::kCompletions, R"({"prompt": )" + nested);
    EXPECT_THAT(error.message, HasSubstr("nested deeper"));
  }
}

TEST(CompletionRequestTest, ManyObjectsInABodyCostLittle) {
  std::string body = R"({"prompt": [{})";
  for (int i = 0; i < 300000; ++i) body += ",{}";
  const TimePoint begin = SteadyClock::now();
  const ApiError error = refused(Api::kCompletions, body + "]}");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_LT(seconds_since(begin), 10) << "quadratic, it is a minute";
}

TEST(CompletionRequestTest, ErrorsQuoteLittleOfLongInput) {
  const std::string longer(100000, 'a');
  EXPECT_LT(refused(Api::kCompletions, R"({"prompt": "x", "n": ")" + longer + "\"}").message.size(),
            300U);
  EXPECT_LT(refused(Api::kCompletions, R"({"prompt": "x", ")" + longer + "\": 1}").message.size(),
            300U);
  EXPECT_LT(refused(Api::kCompletions, R"({"prompt": ")" + longer).message.size(), 300U);
}

std::variant<std::optional<KvTransfer>, ApiError> read_params(std::string_view text) {
  return read_kv_params(*parse_json(text));
}

TEST(KvParamsTest, OwnFormsRoundTrip) {
  const TransferId id = random_transfer_id();
  const auto pushed = std::get<0>(read_kv_params(push_params(id, {"10.0.0.1", 777})));
  ASSERT_TRUE(pushed);
  EXPECT_EQ(pushed->kind, KvTransfer::Kind::kPush);
  EXPECT_EQ(pushed->id, id);
  EXPECT_EQ(pushed->peer, (Address{"10.0.0.1", 777}));
  const auto parked = std::get<0>(read_kv_params(parked_params(id, {"host", 1}, "engine", 65)));
  ASSERT_TRUE(parked);
  EXPECT_EQ(parked->kind, KvTransfer::Kind::kFetch);
  EXPECT_EQ(parked->id, id);
  EXPECT_EQ(parked_params(id, {"host", 1}, "engine", 65)["remote_block_ids"].size(), 2U);
}

TEST(KvParamsTest, ReadsWhatVllmRoutersSend) {
  const auto parked = std::get<0>(read_params(
      R"({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
          "remote_block_ids": null, "remote_host": null, "remote_port": null})"));
  ASSERT_TRUE(parked);
  EXPECT_EQ(parked->kind, KvTransfer::Kind::kPark);
  EXPECT_FALSE(std::get<0>(read_params("{}")));
  EXPECT_FALSE(std::get<0>(read_params(R"({"do_remote_prefill": false})")));
}

TEST(KvParamsTest, RefusesByName) {
  const auto param = [](std::string_view text) {
    const auto read = read_params(text);
    const ApiError* error = std::get_if<ApiError>(&read);
    return error == nullptr ? std::string("accepted") : error->param;
  };
  const std::string prefix = "kv_transfer_params.";
  EXPECT_EQ(param(R"({"do_remote_decode": 1})"), prefix + "do_remote_decode");
  EXPECT_EQ(param(R"({"do_remote_decode": true, "do_remote_prefill": true})"),
            prefix + "do_remote_prefill");
  EXPECT_EQ(param(R"({"bootstrap_room": 5})"), prefix + "bootstrap_room");
  EXPECT_EQ(param(R"({"do_remote_prefill": true})"), prefix + "transfer_id");
  EXPECT_EQ(param(R"({"do_remote_prefill": true, "transfer_id": "xyz"})"), prefix + "transfer_id");
  const std::string id = R"("transfer_id": "000102030405060708090a0b0c0d0e0f")";
  EXPECT_EQ(param(R"({"do_remote_prefill": true, )" + id + "}"), prefix + "remote_host");
  EXPECT_EQ(param(R"({"do_remote_prefill": true, "remote_host": "h", )" + id + "}"),
            prefix + "remote_port");
  EXPECT_EQ(
      param(R"({"do_remote_prefill": true, "remote_host": "h", "remote_port": 65536, )" + id + "}"),
      prefix + "remote_port");
  EXPECT_EQ(
      param(R"({"do_remote_prefill": true, "remote_host": "", "remote_port": 1, )" + id + "}"),
      prefix + "remote_host");
}

TEST(GenerationRequestTest, AppliesDefaultsAndTheContext) {
  const FakePrompter prompter;  // context 100
  const auto made = [&](Api api, std::string_view body) {
    return make_generation_request(accepted(api, body), prompter);
  };
  EXPECT_EQ(std::get<0>(made(Api::kCompletions, R"({"prompt": "abc"})")).max_tokens, 16);
  EXPECT_EQ(std::get<0>(made(Api::kChat, R"({"messages": [{"role": "user", "content": "abc"}]})"))
                .max_tokens,
            97);
  EXPECT_THAT(std::get<0>(made(Api::kCompletions, R"({"prompt": ""})")).prompt, ElementsAre(7));
  EXPECT_EQ(
      std::get<0>(made(Api::kCompletions, R"({"prompt": "abc", "max_tokens": 97})")).max_tokens,
      97);

  const ApiError asked =
      std::get<1>(made(Api::kCompletions, R"({"prompt": "abc", "max_tokens": 98})"));
  EXPECT_EQ(asked.message,
            "This model's maximum context length is 100 tokens. However, you requested 101 tokens "
            "(3 in the prompt, 98 in the completion). Please reduce the length of the prompt or "
            "completion.");
  EXPECT_EQ(asked.code, "context_length_exceeded");
  const ApiError longer =
      std::get<1>(made(Api::kCompletions, R"({"prompt": ")" + std::string(100, 'x') + "\"}"));
  EXPECT_EQ(
      longer.message,
      "This model's maximum context length is 100 tokens. However, your request has 100 input "
      "tokens. Please reduce the length of the prompt.");
  EXPECT_EQ(longer.param, "prompt");
  const ApiError outside = std::get<1>(made(Api::kCompletions, R"({"prompt": [5, 1000]})"));
  EXPECT_THAT(outside.message, HasSubstr("1000, which is outside the vocabulary of 1000"));
}

TEST(GenerationRequestTest, CarriesEverythingOver) {
  const FakePrompter prompter;
  const auto made = make_generation_request(
      accepted(Api::kCompletions, R"({"prompt": "abc", "max_tokens": 9, "min_tokens": 9, "n": 2,
               "stop_token_ids": [5], "stop": "x", "seed": 3, "ignore_eos": true, "logprobs": 2,
               "cache_salt": "s", "priority": 4, "user": "me", "logit_bias": {"999": 1},
               "min_p": 0.5})"),
      prompter);
  const GenerationRequest& request = std::get<0>(made);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 9);
  EXPECT_THAT(request.stop_tokens, ElementsAre(5));
  EXPECT_THAT(request.stop, ElementsAre("x"));
  EXPECT_EQ(request.seed, 3U);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, 4);
  EXPECT_EQ(request.client, "me");
  EXPECT_EQ(request.sampling.logit_bias.size(), 1U);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.5F);
}

TEST(GenerationRequestTest, IsHeldAgainstVocabularyAndLengths) {
  const FakePrompter prompter;  // 1000 tokens, context 100
  const auto error = [&](std::string_view body) {
    return std::get<1>(make_generation_request(accepted(Api::kCompletions, body), prompter));
  };
  EXPECT_EQ(error(R"({"prompt": "abc", "stop_token_ids": [1000]})").param, "stop_token_ids");
  EXPECT_EQ(error(R"({"prompt": "abc", "logit_bias": {"1000": 1}})").param, "logit_bias");
  const ApiError min = error(R"({"prompt": "abc", "min_tokens": 17})");
  EXPECT_EQ(min.param, "min_tokens");
  EXPECT_THAT(min.message, HasSubstr("more than the 16 tokens"));
}

// Of a context so long that everything asked for together is too much.
TEST(GenerationRequestTest, LogprobsHaveALimitInAll) {
  class LongPrompter : public FakePrompter {
    int context() const override { return 10000; }
  };
  const LongPrompter prompter;
  const auto made = [&](int n, int logprobs) {
    return make_generation_request(
        accepted(Api::kCompletions, R"({"prompt": "abc", "max_tokens": 8192, "n": )" +
                                        std::to_string(n) + R"(, "logprobs": )" +
                                        std::to_string(logprobs) + "}"),
        prompter);
  };
  EXPECT_TRUE(std::holds_alternative<GenerationRequest>(made(8, 15)));
  ASSERT_TRUE(std::holds_alternative<ApiError>(made(8, 16)));
  EXPECT_EQ(std::get<ApiError>(made(8, 16)).param, "logprobs");
  EXPECT_THAT(std::get<ApiError>(made(8, 16)).message, HasSubstr("1114112 log probabilities"));
}

TEST(GenerationRequestTest, ChatsNeedATemplate) {
  const FakePrompter prompter(false);
  const auto made = make_generation_request(
      accepted(Api::kChat, R"({"messages": [{"role": "user", "content": "abc"}]})"), prompter);
  EXPECT_EQ(std::get<1>(made).status, 400);
  EXPECT_THAT(std::get<1>(made).message, HasSubstr("no chat template"));
}

// What follows a chat is not part of its beginning: neither the next message nor the '>' with which
// these prompts end.
TEST(ChatBeginning, IsWhatAllPromptsShareThatGoOnFromThere) {
  const FakePrompter prompter(true, true);
  const std::vector<std::int32_t> abc = {'a', 'b', 'c'};
  for (const char* role : {"system", "user", "assistant"}) {
    const auto ids = encode_chat_beginning({{"system", "a"}, {role, "bc"}}, prompter);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, abc) << role;
  }
  EXPECT_FALSE(encode_chat_beginning({{"user", "a"}}, FakePrompter(false)).ok());
}

TEST(HttpTest, ParsesUrlsAndAddresses) {
  EXPECT_EQ(*parse_url("http://host:81/"), (Url{{"host", 81}, ""}));
  EXPECT_EQ(*parse_url("http://[::1]:81/a/b"), (Url{{"::1", 81}, "/a/b"}));
  EXPECT_EQ(*parse_url("http://host"), (Url{{"host", 80}, ""}));
  for (const char* bad : {"", "host:80", "https://host", "http://", "http://:80", "http://h:0",
                          "http://h:65536", "http://h:8x", "http://a b", "http://u@h",
                          "http://[::1", "http://h/a?b", "http://h:80\r\nX: y"}) {
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
  }
  EXPECT_EQ(*parse_address("127.0.0.1:5"), (Address{"127.0.0.1", 5}));
  EXPECT_EQ(parse_address("127.0.0.1").status().message(), "'127.0.0.1' has no port");
  EXPECT_FALSE(parse_address("127.0.0.1:").ok());
}

}  // namespace
}  // namespace kvlane
