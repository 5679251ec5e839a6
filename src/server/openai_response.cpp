// Objects and events of OpenAI's completion APIs.
// SPDX-License-Identifier: Apache-2.0
#include "server/openai_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/json_text.h"
#include "server/logprobs_json.h"

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

json usage_json(int prompt_tokens, int completion_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens}};
}

json usage_json(const Finish& finish) {
  json usage = usage_json(finish.prompt_tokens, finish.completion_tokens);
  usage["prompt_tokens_details"] = {{"cached_tokens", finish.cached_tokens}};
  return usage;
}

json kvlane_json(const Finish& finish) {
  return {{"account", account_json(finish.account)},
          {"kv",
           {{"raw_bytes", finish.kv.raw},
            {"shipped_bytes", finish.kv.shipped},
            {"codec", finish.kv.codec.empty() ? json() : json(finish.kv.codec)}}}};
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

CompletionFormat::CompletionFormat(const CompletionRequest& request, const Prompter& prompter,
                                   AnswerHead head)
    : api_(request.api),
      include_usage_(request.include_usage),
      continuous_usage_(request.include_usage && request.continuous_usage),
      token_ids_(request.return_token_ids),
      logprobs_(request.logprobs.has_value()),
      prompter_(prompter),
      head_(std::move(head)),
      id_((request.api == Api::kChat ? "chatcmpl-" : "cmpl-") + head_.request_id),
      choices_(request.n) {}

json CompletionFormat::skeleton(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", head_.created}, {"model", head_.model}};
}

json CompletionFormat::chunk(json choice) const {
  json event = skeleton(api_ == Api::kChat ? "chat.completion.chunk" : "text_completion");
  event["choices"] = json::array();
  if (!choice.is_null()) event["choices"].push_back(std::move(choice));
  if (continuous_usage_) event["usage"] = usage_json(head_.prompt_tokens, tokens_);
  return event;
}

json CompletionFormat::logprobs_of(const Update& update) {
  if (!logprobs_) return {};
  if (api_ == Api::kChat) return chat_logprobs(update.tokens, update.logprobs, prompter_);
  return completion_logprobs(update.tokens, update.logprobs, prompter_,
                             choices_[update.choice].characters);
}

// All but its text, which has as many places as there are forms of answers.
json CompletionFormat::choice_of(const Update& update) {
  json choice = {
      {"index", update.choice}, {"logprobs", logprobs_of(update)}, {"finish_reason", nullptr}};
  if (update.ended) choice["finish_reason"] = reason_name(*update.ended);
  if (token_ids_) choice["token_ids"] = update.tokens;
  return choice;
}

bool CompletionFormat::tells_something(const Update& update) const {
  const bool tells_tokens = (token_ids_ || logprobs_) && !update.tokens.empty();
  return !update.text.empty() || tells_tokens || update.ended;
}

std::string CompletionFormat::events(const Update& update) {
  std::string out;
  bool& role_sent = choices_[update.choice].role_sent;
  if (api_ == Api::kChat && !role_sent) {
    const json role = {{"index", update.choice},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}};
    out += sse_event(to_text(chunk(role)));
    role_sent = true;
  }
  tokens_ += static_cast<int>(update.tokens.size());
  const bool extension_here = update.finish && !include_usage_;
  if (tells_something(update) || extension_here) {
    json choice;
    if (tells_something(update)) {
      choice = choice_of(update);
      if (api_ == Api::kChat) {
        choice["delta"] = json::object();
        if (!update.text.empty()) choice["delta"]["content"] = update.text;
      } else {
        choice["text"] = update.text;
      }
    }
    json event = chunk(std::move(choice));
    if (extension_here) event["kvlane"] = kvlane_json(*update.finish);
    out += sse_event(to_text(event));
  }
  if (!update.finish) return out;
  if (include_usage_) {
    json last = chunk(json());
    last["usage"] = usage_json(*update.finish);
    last["kvlane"] = kvlane_json(*update.finish);
    out += sse_event(to_text(last));
  }
  return out + kDoneEvent;
}

std::string CompletionFormat::whole(std::span<const Update> choices, const Finish& finish,
                                    const json& kv_transfer_params) {
  json object = skeleton(api_ == Api::kChat ? "chat.completion" : "text_completion");
  json& list = object["choices"] = json::array();
  for (const Update& update : choices) {
    json choice = choice_of(update);
    if (api_ == Api::kChat) {
      choice["message"] = {{"role", "assistant"}, {"content", update.text}};
    } else {
      choice["text"] = update.text;
    }
    list.push_back(std::move(choice));
  }
  object["usage"] = usage_json(finish);
  object["kv_transfer_params"] = kv_transfer_params;
  object["kvlane"] = kvlane_json(finish);
  return to_text(object);
}

}  // namespace kvlane
