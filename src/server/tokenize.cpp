// Text and messages to token ids, and ids to text.
// SPDX-License-Identifier: Apache-2.0
#include "server/tokenize.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "server/json_field.h"
#include "server/json_text.h"
#include "server/prompt_fields.h"

namespace kvlane {

using nlohmann::json;

namespace {

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<ChatMessage> messages;  // if there is no prompt
  // Templates write what they want themselves, so with messages it may only be false.
  std::optional<bool> add_special_tokens;
  std::optional<bool> add_generation_prompt;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::optional<std::vector<std::int32_t>> tokens;
};

template <class Request>
struct Field {
  std::string_view name;
  Refusal (*read)(const json& value, std::string_view name, Request& out);
};

// Fields that are null are as good as absent; unknown ones are refused.
template <class Request>
ApiResult<Request> read_fields(std::string_view body, std::span<const Field<Request>> fields) {
  const Result<json> parsed = parse_json(body);
  if (!parsed.ok()) return ApiError{400, "The body is " + parsed.status().message() + ".", "", ""};
  if (!parsed->is_object()) return ApiError{400, "The body must be a JSON object.", "", ""};
  Request request;
  for (const auto& [name, value] : parsed->items()) {
    const auto field = std::ranges::find(fields, name, &Field<Request>::name);
    if (field == fields.end()) return unknown_field(name);
    if (value.is_null()) continue;
    if (Refusal refusal = field->read(value, name, request)) return std::move(*refusal);
  }
  return request;
}

template <class Request>
Refusal read_model(const json& value, std::string_view name, Request& out) {
  return read_string(value, name, out.model);
}

// For fields that mean nothing here: only `neutral` is taken.
Refusal read_neutral(const json& value, std::string_view name, const json& neutral) {
  if (value == neutral) return {};
  return wrong_field(name, "= " + quoted(value) + " is not supported; leave it out");
}

constexpr Field<TokenizeRequest> kTokenizeFields[] = {
    {"model", read_model<TokenizeRequest>},
    {"prompt", [](const json& value, std::string_view name,
                  TokenizeRequest& out) { return read_string(value, name, out.prompt.emplace()); }},
    {"messages", [](const json& value, std::string_view name,
                    TokenizeRequest& out) { return read_messages(value, name, out.messages); }},
    {"add_special_tokens",
     [](const json& value, std::string_view name, TokenizeRequest& out) {
       return read_bool(value, name, out.add_special_tokens.emplace());
     }},
    {"add_generation_prompt",
     [](const json& value, std::string_view name, TokenizeRequest& out) {
       return read_bool(value, name, out.add_generation_prompt.emplace());
     }},
    {"return_token_strs",
     [](const json& value, std::string_view name, TokenizeRequest& out) {
       return read_bool(value, name, out.return_token_strs);
     }},
    {"continue_final_message", [](const json& value, std::string_view name,
                                  TokenizeRequest&) { return read_neutral(value, name, false); }},
    {"chat_template_kwargs",
     [](const json& value, std::string_view name, TokenizeRequest&) {
       return read_neutral(value, name, json::object());
     }},
    {"tools", [](const json& value, std::string_view name,
                 TokenizeRequest&) { return read_neutral(value, name, json::array()); }},
};

constexpr Field<DetokenizeRequest> kDetokenizeFields[] = {
    {"model", read_model<DetokenizeRequest>},
    {"tokens",
     [](const json& value, std::string_view name, DetokenizeRequest& out) {
       return read_token_ids(value, name, kTokenizeTokensMax, out.tokens.emplace());
     }},
};

Refusal check_form(const TokenizeRequest& request) {
  const bool chat = !request.messages.empty();
  if (request.prompt.has_value() == chat) {
    return ApiError{400, "The body must have either 'prompt' or 'messages'.", "prompt", ""};
  }
  if (chat && request.add_special_tokens.value_or(false)) {
    return wrong_field("add_special_tokens",
                       "must be false with 'messages': the chat template adds what it needs");
  }
  if (!chat && request.add_generation_prompt) {
    return wrong_field("add_generation_prompt", "is only allowed with 'messages'");
  }
  return {};
}

}  // namespace

ApiResult<std::string> tokenize(std::string_view body, const Prompter& prompter,
                                const std::string& model_name) {
  ApiResult<TokenizeRequest> read = read_fields<TokenizeRequest>(body, kTokenizeFields);
  if (ApiError* error = std::get_if<ApiError>(&read)) return std::move(*error);
  const TokenizeRequest& request = std::get<TokenizeRequest>(read);
  if (Refusal refusal = check_model(request.model, model_name)) return std::move(*refusal);
  if (Refusal refusal = check_form(request)) return std::move(*refusal);
  const Result<std::vector<std::int32_t>> tokens =
      request.prompt
          ? prompter.encode_text(*request.prompt, request.add_special_tokens.value_or(true))
          : prompter.encode_chat(request.messages, request.add_generation_prompt.value_or(true));
  const char* const field = request.prompt ? "prompt" : "messages";
  if (!tokens.ok()) {
    ApiError error = to_api_error(tokens.status());
    error.param = field;
    return error;
  }
  if (tokens->size() > kTokenizeTokensMax) {
    return wrong_field(field, "has " + std::to_string(tokens->size()) + " tokens; at most " +
                                  std::to_string(kTokenizeTokensMax) + " are told");
  }
  json answer = {{"count", tokens->size()},
                 {"max_model_len", prompter.context()},
                 {"tokens", *tokens},
                 {"token_strs", nullptr}};
  if (request.return_token_strs) {
    json& texts = answer["token_strs"] = json::array();
    for (const std::int32_t id : *tokens) texts.push_back(prompter.token_bytes(id));
  }
  return to_text(answer);
}

ApiResult<std::string> detokenize(std::string_view body, const Prompter& prompter,
                                  const std::string& model_name) {
  ApiResult<DetokenizeRequest> read = read_fields<DetokenizeRequest>(body, kDetokenizeFields);
  if (ApiError* error = std::get_if<ApiError>(&read)) return std::move(*error);
  const DetokenizeRequest& request = std::get<DetokenizeRequest>(read);
  if (Refusal refusal = check_model(request.model, model_name)) return std::move(*refusal);
  if (!request.tokens) return wrong_field("tokens", "is missing");
  std::string text;
  for (const std::int32_t id : *request.tokens) {
    if (id >= prompter.vocabulary()) {
      return wrong_field("tokens", "contains token id " + std::to_string(id) +
                                       ", which is outside the vocabulary of " +
                                       std::to_string(prompter.vocabulary()) + " tokens");
    }
    text += prompter.token_bytes(id);
  }
  return to_text(json{{"prompt", text}});  // what is no UTF-8 is replaced
}

}  // namespace kvlane
