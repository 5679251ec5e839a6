// One table row and one small function for each field of a request.
// SPDX-License-Identifier: Apache-2.0
#include "server/openai_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "server/json_field.h"
#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;
Refusal read_model(const json& value, std::string_view name, CompletionRequest& out) {
  return read_string(value, name, out.model);
}

Refusal read_prompt_field(const json& value, std::string_view name, CompletionRequest& out) {
  return read_prompt(value, name, out.prompt);
}

Refusal read_messages_field(const json& value, std::string_view name, CompletionRequest& out) {
  return read_messages(value, name, out.messages);
}

Refusal read_max_tokens(const json& value, std::string_view name, CompletionRequest& out) {
  int tokens = 0;
  if (Refusal r = read_int(value, name, 1, INT32_MAX, tokens)) return r;
  if (out.max_tokens && *out.max_tokens != tokens) {
    return wrong_field(name, "differs between 'max_tokens' and 'max_completion_tokens'");
  }
  out.max_tokens = tokens;
  return {};
}

Refusal read_min_tokens(const json& value, std::string_view name, CompletionRequest& out) {
  return read_int(value, name, 0, INT32_MAX, out.min_tokens);
}

Refusal read_n(const json& value, std::string_view name, CompletionRequest& out) {
  return read_int(value, name, 1, kChoicesMax, out.n);
}

// Means something only together with others.
Refusal leave_to_check_whole(const json&, std::string_view, CompletionRequest&) { return {}; }

Refusal read_temperature(const json& value, std::string_view name, CompletionRequest& out) {
  return read_number(value, name, 0, 2, out.sampling.temperature);
}

Refusal read_top_p(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_number() || !(value.get<float>() > 0) || value.get<double>() > 1) {
    return wrong_field(name, "must be a number above 0 and at most 1, not " + quoted(value));
  }
  out.sampling.top_p = value.get<float>();
  return {};
}

Refusal read_top_k(const json& value, std::string_view name, CompletionRequest& out) {
  int top_k = 0;
  if (Refusal r = read_int(value, name, -1, INT32_MAX, top_k)) return r;
  out.sampling.top_k = std::max(top_k, 0);  // vLLM's -1 and 0 both mean all
  return {};
}

Refusal read_min_p(const json& value, std::string_view name, CompletionRequest& out) {
  return read_number(value, name, 0, 1, out.sampling.min_p);
}

Refusal read_presence_penalty(const json& value, std::string_view name, CompletionRequest& out) {
  return read_number(value, name, -2, 2, out.sampling.presence_penalty);
}

Refusal read_frequency_penalty(const json& value, std::string_view name, CompletionRequest& out) {
  return read_number(value, name, -2, 2, out.sampling.frequency_penalty);
}

Refusal read_repetition_penalty(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_number() || !(value.get<float>() > 0) || value.get<double>() > 2) {
    return wrong_field(name, "must be a number above 0 and at most 2, not " + quoted(value));
  }
  out.sampling.repetition_penalty = value.get<float>();
  return {};
}

// Keys are token ids in decimal, as OpenAI has it.
Refusal read_logit_bias(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_object() || value.size() > kLogitBiasesMax) {
    return wrong_field(name, "must be an object of at most " + std::to_string(kLogitBiasesMax) +
                                 " token ids with their biases");
  }
  for (const auto& [key, bias] : value.items()) {
    LogitBias entry;
    const char* const end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, entry.token);
    if (read.ec != std::errc() || read.ptr != end || entry.token < 0) {
      return wrong_field(name, "has the key " + quoted(json(key)) + ", which is not a token id");
    }
    const std::string entry_name = std::string(name) + "." + key;
    if (Refusal refusal = read_number(bias, entry_name, -100, 100, entry.bias)) return refusal;
    out.sampling.logit_bias.push_back(entry);
  }
  return {};
}

Refusal read_seed(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_number_integer())
    return wrong_field(name, "must be an integer, not " + quoted(value));
  out.seed = value.get<std::uint64_t>();  // negative ones wrap: any 64 bits are a seed
  return {};
}

Refusal read_stop(const json& value, std::string_view name, CompletionRequest& out) {
  const json list = value.is_array() ? value : json::array({value});
  if (list.size() > kStopStringsMax) {
    return wrong_field(name, "holds " + std::to_string(list.size()) + " strings; at most " +
                                 std::to_string(kStopStringsMax) + " are allowed");
  }
  for (const json& item : list) {
    std::string text;
    if (Refusal refusal = read_string(item, name, text)) return refusal;
    if (text.empty() || text.size() > kStopStringBytesMax) {
      return wrong_field(name, "must hold strings of 1 to " + std::to_string(kStopStringBytesMax) +
                                   " bytes, not " + std::to_string(text.size()));
    }
    out.stop.push_back(std::move(text));
  }
  return {};
}

Refusal read_stop_tokens(const json& value, std::string_view name, CompletionRequest& out) {
  return read_token_ids(value, name, kStopTokensMax, out.stop_tokens);
}

Refusal read_ignore_eos(const json& value, std::string_view name, CompletionRequest& out) {
  return read_bool(value, name, out.ignore_eos);
}

Refusal read_stream(const json& value, std::string_view name, CompletionRequest& out) {
  return read_bool(value, name, out.stream);
}

Refusal read_return_token_ids(const json& value, std::string_view name, CompletionRequest& out) {
  return read_bool(value, name, out.return_token_ids);
}

Refusal read_stream_options(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_object()) return wrong_field(name, "must be an object, not " + quoted(value));
  for (const auto& [key, option] : value.items()) {
    const std::string option_name = std::string(name) + "." + key;
    if (key != "include_usage" && key != "continuous_usage_stats") {
      return wrong_field(option_name, "is not supported");
    }
    bool& flag = key == "include_usage" ? out.include_usage : out.continuous_usage;
    if (Refusal refusal = read_bool(option, option_name, flag)) return refusal;
  }
  return {};
}

Refusal read_logprobs(const json& value, std::string_view name, CompletionRequest& out) {
  return read_int(value, name, 0, kLogprobsMax, out.logprobs.emplace());
}

// Whether 'logprobs' asks for them: check_whole().
Refusal read_chat_logprobs(const json& value, std::string_view name, CompletionRequest&) {
  bool asked = false;
  return read_bool(value, name, asked);
}

Refusal read_cache_salt(const json& value, std::string_view name, CompletionRequest& out) {
  return read_name(value, name, kNameBytesMax, out.cache_salt);
}

Refusal read_priority(const json& value, std::string_view name, CompletionRequest& out) {
  return read_int(value, name, INT32_MIN, INT32_MAX, out.priority);
}

// An empty one is as good as none, which is what some clients mean by it.
Refusal read_user(const json& value, std::string_view name, CompletionRequest& out) {
  if (value == "") return {};
  return read_name(value, name, kNameBytesMax, out.client);
}

Refusal read_kv_transfer_params(const json& value, std::string_view, CompletionRequest& out) {
  ApiResult<std::optional<KvTransfer>> read = read_kv_params(value);
  if (ApiError* error = std::get_if<ApiError>(&read)) return std::move(*error);
  out.kv_transfer = std::get<0>(std::move(read));
  return {};
}

struct CompletionField {
  std::string_view name;
  bool completions;
  bool chat;
  Refusal (*read)(const json& value, std::string_view name, CompletionRequest& out);
};

// Fields that mean something here. null means absent, as in OpenAI's API.
constexpr std::array<CompletionField, 30> kFields = {{
    {"model", true, true, read_model},
    {"prompt", true, false, read_prompt_field},
    {"messages", false, true, read_messages_field},
    {"max_tokens", true, true, read_max_tokens},
    {"max_completion_tokens", true, true, read_max_tokens},
    {"min_tokens", true, true, read_min_tokens},
    {"n", true, true, read_n},
    {"best_of", true, true, leave_to_check_whole},
    {"temperature", true, true, read_temperature},
    {"top_p", true, true, read_top_p},
    {"top_k", true, true, read_top_k},
    {"min_p", true, true, read_min_p},
    {"presence_penalty", true, true, read_presence_penalty},
    {"frequency_penalty", true, true, read_frequency_penalty},
    {"repetition_penalty", true, true, read_repetition_penalty},
    {"logit_bias", true, true, read_logit_bias},
    {"seed", true, true, read_seed},
    {"stop", true, true, read_stop},
    {"stop_token_ids", true, true, read_stop_tokens},
    {"ignore_eos", true, true, read_ignore_eos},
    {"logprobs", true, false, read_logprobs},
    {"logprobs", false, true, read_chat_logprobs},
    {"top_logprobs", false, true, read_logprobs},
    {"stream", true, true, read_stream},
    {"stream_options", true, true, read_stream_options},
    {"return_token_ids", true, true, read_return_token_ids},
    {"cache_salt", true, true, read_cache_salt},
    {"priority", true, true, read_priority},
    {"user", true, true, read_user},
    {"kv_transfer_params", true, true, read_kv_transfer_params},
}};

// Known fields that kvlane does not do, and the values with which they change nothing: clients and
// benchmark tools send these.
struct Neutral {
  std::string_view name;
  std::string_view values;  // a JSON array
};
constexpr std::array<Neutral, 27> kNeutral = {{
    {"echo", "[false]"},
    {"top_logprobs", "[0]"},
    {"prompt_logprobs", "[]"},
    {"suffix", R"([""])"},
    {"length_penalty", "[1]"},
    {"use_beam_search", "[false]"},
    {"include_stop_str_in_output", "[false]"},
    {"skip_special_tokens", "[true]"},
    {"spaces_between_special_tokens", "[true]"},
    {"truncate_prompt_tokens", "[]"},
    {"add_generation_prompt", "[true]"},
    {"continue_final_message", "[false]"},
    {"chat_template", "[]"},
    {"chat_template_kwargs", "[{}]"},
    {"tools", "[[]]"},
    {"tool_choice", R"(["none"])"},
    {"parallel_tool_calls", "[]"},
    {"functions", "[[]]"},
    {"function_call", R"(["none"])"},
    {"response_format", R"([{"type":"text"}])"},
    {"modalities", R"([["text"]])"},
    {"audio", "[]"},
    {"prediction", "[]"},
    {"reasoning_effort", "[]"},
    {"metadata", "[{}]"},
    {"store", "[false]"},
    {"service_tier", R"(["auto","default"])"},
}};

Refusal check_neutral(const std::string& name, const json& value) {
  const auto* const found = std::find_if(kNeutral.begin(), kNeutral.end(),
                                         [&](const Neutral& n) { return n.name == name; });
  if (found == kNeutral.end()) {
    return unknown_field(name);
  }
  if (value.is_null()) return {};
  const json neutral = json::parse(found->values);
  if (std::find(neutral.begin(), neutral.end(), value) != neutral.end()) return {};
  const std::string instead =
      neutral.empty() ? "leave it out" : "leave it out or send " + neutral[0].dump();
  return wrong_field(name, "= " + quoted(value) + " is not supported; " + instead);
}

bool is_true(const json& body, const char* field) {
  return body.contains(field) && body[field] == true;
}

// Without ranking there is nothing to choose from.
Refusal check_best_of(const json& body, const CompletionRequest& request) {
  if (!body.contains("best_of") || body["best_of"].is_null()) return {};
  int best_of = 0;
  if (Refusal refusal = read_int(body["best_of"], "best_of", 1, kChoicesMax, best_of)) {
    return refusal;
  }
  if (best_of == request.n) return {};
  return wrong_field("best_of", "must equal 'n', which is " + std::to_string(request.n) +
                                    ": kvlane does not choose among answers");
}

Refusal settle_chat_logprobs(const json& body, CompletionRequest& request) {
  const bool asked = is_true(body, "logprobs");
  if (!asked && request.logprobs.value_or(0) > 0) {
    return wrong_field("top_logprobs", "is only allowed when 'logprobs' is true");
  }
  request.logprobs = asked ? std::optional(request.logprobs.value_or(0)) : std::nullopt;
  return {};
}

// What several fields say together.
Refusal check_whole(const json& body, CompletionRequest& request) {
  const char* const prompt = request.api == Api::kChat ? "messages" : "prompt";
  if (!body.contains(prompt) || body[prompt].is_null()) return wrong_field(prompt, "is missing");
  const bool has_stream_options =
      body.contains("stream_options") && !body["stream_options"].is_null();
  if (has_stream_options && !request.stream) {
    return wrong_field("stream_options", "is only allowed when 'stream' is true");
  }
  if (Refusal refusal = check_best_of(body, request)) return refusal;
  if (request.api == Api::kChat) return settle_chat_logprobs(body, request);
  return {};
}

}  // namespace

std::string_view api_path(Api api) {
  return api == Api::kChat ? "/v1/chat/completions" : "/v1/completions";
}

ApiResult<CompletionRequest> read_completion_request(Api api, const json& body) {
  if (!body.is_object()) return ApiError{400, "The body must be a JSON object.", "", ""};
  CompletionRequest request;
  request.api = api;
  for (const auto& [name, value] : body.items()) {
    const auto* const field =
        std::find_if(kFields.begin(), kFields.end(), [&, &name = name](const CompletionField& f) {
          return f.name == name && (api == Api::kChat ? f.chat : f.completions);
        });
    Refusal refusal;
    if (field == kFields.end()) {
      refusal = check_neutral(name, value);
    } else if (!value.is_null()) {
      refusal = field->read(value, name, request);
    }
    if (refusal) return std::move(*refusal);
  }
  if (Refusal refusal = check_whole(body, request)) return std::move(*refusal);
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(Api api, std::string_view body) {
  const Result<json> parsed = parse_json(body);
  if (!parsed.ok()) {
    return ApiError{400, "The body is " + parsed.status().message() + ".", "", ""};
  }
  return read_completion_request(api, *parsed);
}

}  // namespace kvlane
