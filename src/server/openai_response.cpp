// Objects and events of OpenAI's completion APIs.
// SPDX-License-Identifier: Apache-2.0
#include "server/openai_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
  }
  return "error";
}

json usage_json(const Finish& finish) {
  return {{"prompt_tokens", finish.prompt_tokens},
          {"completion_tokens", finish.completion_tokens},
          {"total_tokens", finish.prompt_tokens + finish.completion_tokens}};
}

json kvlane_json(const Finish& finish) {
  return {{"account", account_json(finish.account)},
          {"kv", {{"raw_bytes", finish.kv.raw}, {"shipped_bytes", finish.kv.shipped}}}};
}

}  // namespace

std::string sse_event(const std::string& json_text) { return "data: " + json_text + "\n\n"; }

void close_account(TimeAccount& account, double measured) {
  account.other = 0;
  account.other = std::max(0.0, measured - account.total());
}

json account_json(const TimeAccount& account) {
  json object = json::object();
  for (const AccountField& field : kAccountFields) {
    object[std::string(field.name)] = account.*field.seconds;
  }
  object["total"] = account.total();
  return object;
}

TimeAccount account_from_json(const json& object) {
  TimeAccount account;
  for (const AccountField& field : kAccountFields) {
    const auto found = object.find(std::string(field.name));
    if (found != object.end() && found->is_number()) account.*field.seconds = found->get<double>();
  }
  return account;
}

CompletionFormat::CompletionFormat(const CompletionRequest& request, const std::string& request_id,
                                   std::string model, std::int64_t created)
    : api_(request.api),
      include_usage_(request.include_usage),
      token_ids_(request.return_token_ids),
      id_((request.api == Api::kChat ? "chatcmpl-" : "cmpl-") + request_id),
      model_(std::move(model)),
      created_(created) {}

json CompletionFormat::skeleton(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

json CompletionFormat::chunk(json choice) const {
  json event = skeleton(api_ == Api::kChat ? "chat.completion.chunk" : "text_completion");
  event["choices"] = json::array();
  if (!choice.is_null()) event["choices"].push_back(std::move(choice));
  return event;
}

std::string CompletionFormat::events(const Update& update) {
  std::string out;
  if (api_ == Api::kChat && !role_sent_) {
    const json role = {{"index", 0},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}};
    out += sse_event(to_text(chunk(role)));
    role_sent_ = true;
  }
  const bool has_tokens = token_ids_ && !update.tokens.empty();
  if (update.text.empty() && !has_tokens && !update.finish) return out;

  json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (api_ == Api::kChat) {
    choice["delta"] = json::object();
    if (!update.text.empty()) choice["delta"]["content"] = update.text;
  } else {
    choice["text"] = update.text;
  }
  if (token_ids_) choice["token_ids"] = update.tokens;
  if (update.ended) choice["finish_reason"] = reason_name(*update.ended);
  json event = chunk(std::move(choice));
  if (!update.finish) return out + sse_event(to_text(event));

  json last = include_usage_ ? chunk(json()) : json();
  (include_usage_ ? last : event)["kvlane"] = kvlane_json(*update.finish);
  out += sse_event(to_text(event));
  if (include_usage_) {
    last["usage"] = usage_json(*update.finish);
    out += sse_event(to_text(last));
  }
  return out + kDoneEvent;
}

std::string CompletionFormat::whole(const Update& answer, const Finish& finish,
                                    const json& kv_transfer_params) const {
  json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (answer.ended) choice["finish_reason"] = reason_name(*answer.ended);
  if (api_ == Api::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", answer.text}};
  } else {
    choice["text"] = answer.text;
  }
  if (token_ids_) choice["token_ids"] = answer.tokens;
  json object = skeleton(api_ == Api::kChat ? "chat.completion" : "text_completion");
  object["choices"] = json::array({std::move(choice)});
  object["usage"] = usage_json(finish);
  object["kv_transfer_params"] = kv_transfer_params;
  object["kvlane"] = kvlane_json(finish);
  return to_text(object);
}

}  // namespace kvlane
