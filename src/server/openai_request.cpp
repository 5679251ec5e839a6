// One table row and one small function for each field of a request.
// SPDX-License-Identifier: Apache-2.0
#include "server/openai_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;
using Refusal = std::optional<ApiError>;

ApiError wrong(std::string_view name, const std::string& what) {
  return {400, "'" + std::string(name) + "' " + what + ".", std::string(name), ""};
}

// The value as it was sent, short enough for a sentence.
std::string quoted(const json& value) {
  constexpr std::size_t kQuoteBytesMax = 60;
  std::string text = to_text(value);
  if (text.size() > kQuoteBytesMax) text.replace(kQuoteBytesMax, std::string::npos, "...");
  return text;
}

Refusal read_bool(const json& value, std::string_view name, bool& out) {
  if (!value.is_boolean()) return wrong(name, "must be true or false, not " + quoted(value));
  out = value.get<bool>();
  return {};
}

Refusal read_string(const json& value, std::string_view name, std::string& out) {
  if (!value.is_string()) return wrong(name, "must be a string, not " + quoted(value));
  out = value.get<std::string>();
  return {};
}

Refusal read_int(const json& value, std::string_view name, int min, int max, int& out) {
  // Unsigned numbers beyond 2^63 must not turn into negative ones.
  const bool too_large =
      value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT32_MAX};
  if (!value.is_number_integer() || too_large || value.get<std::int64_t>() < min ||
      value.get<std::int64_t>() > max) {
    return wrong(name, "must be an integer from " + std::to_string(min) + " to " +
                           std::to_string(max) + ", not " + quoted(value));
  }
  out = value.get<int>();
  return {};
}

Refusal read_model(const json& value, std::string_view name, CompletionRequest& out) {
  return read_string(value, name, out.model);
}

Refusal read_prompt_ids(const json& value, std::string_view name, CompletionRequest& out) {
  out.prompt_ids.reserve(value.size());
  for (const json& id : value) {
    int number = 0;
    if (!id.is_number_integer()) {
      return wrong(name, "must be a string or an array of token ids; it contains " + quoted(id));
    }
    if (read_int(id, name, 0, INT32_MAX, number)) {
      return wrong(name, "contains " + quoted(id) + ", which is not a token id");
    }
    out.prompt_ids.push_back(number);
  }
  return {};
}

Refusal read_prompt(const json& value, std::string_view name, CompletionRequest& out) {
  if (value.is_string()) return read_string(value, name, out.prompt_text);
  if (!value.is_array()) {
    return wrong(name, "must be a string or an array of token ids, not " + quoted(value));
  }
  if (value.empty() || value.front().is_number()) return read_prompt_ids(value, name, out);
  if (value.size() > 1) {
    return wrong(name, "holds " + std::to_string(value.size()) +
                           " prompts; kvlane takes one prompt in a request");
  }
  const json& only = value.front();
  if (only.is_string()) return read_string(only, name, out.prompt_text);
  if (only.is_array()) return read_prompt_ids(only, name, out);
  return wrong(name, "must be a string or an array of token ids; it contains " + quoted(only));
}

// Content is a string, or an array of parts of which only text is supported.
Refusal read_content(const json& content, const std::string& name, std::string& out) {
  if (content.is_string()) return read_string(content, name, out);
  if (!content.is_array()) {
    return wrong(name, "must be a string or an array of text parts, not " + quoted(content));
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string part_name = name + "[" + std::to_string(i) + "]";
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return wrong(part_name, "must be an object with a 'type'");
    }
    if (part["type"] != "text") {
      return wrong(part_name, "has the type " + quoted(part["type"]) + "; only text is supported");
    }
    if (!part.contains("text") || !part["text"].is_string() || part.size() != 2) {
      return wrong(part_name, "must have 'type' and a string 'text', and nothing else");
    }
    if (i > 0) out += '\n';
    out += part["text"].get<std::string>();
  }
  return {};
}

Refusal read_message(const json& message, const std::string& name, ChatMessage& out) {
  if (!message.is_object()) return wrong(name, "must be an object, not " + quoted(message));
  for (const auto& [key, value] : message.items()) {
    if (key != "role" && key != "content" && !value.is_null()) {
      return wrong(name + "." + key, "is not supported in a message");
    }
  }
  if (!message.contains("role")) return wrong(name + ".role", "is missing");
  if (!message.contains("content")) return wrong(name + ".content", "is missing");
  if (Refusal refusal = read_string(message["role"], name + ".role", out.role)) return refusal;
  constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};
  if (std::find(kRoles.begin(), kRoles.end(), out.role) == kRoles.end()) {
    return wrong(name + ".role",
                 "must be system, user or assistant, not " + quoted(message["role"]));
  }
  return read_content(message["content"], name + ".content", out.content);
}

Refusal read_messages(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_array() || value.empty() || value.size() > kMessagesMax) {
    return wrong(name, "must be an array of 1 to " + std::to_string(kMessagesMax) + " messages");
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    ChatMessage message;
    const std::string item = std::string(name) + "[" + std::to_string(i) + "]";
    if (Refusal refusal = read_message(value[i], item, message)) return refusal;
    out.messages.push_back(std::move(message));
  }
  return {};
}

Refusal read_max_tokens(const json& value, std::string_view name, CompletionRequest& out) {
  int tokens = 0;
  if (Refusal r = read_int(value, name, 1, INT32_MAX, tokens)) return r;
  if (out.max_tokens && *out.max_tokens != tokens) {
    return wrong(name, "differs between 'max_tokens' and 'max_completion_tokens'");
  }
  out.max_tokens = tokens;
  return {};
}

Refusal read_temperature(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 2) {
    return wrong(name, "must be a number from 0 to 2, not " + quoted(value));
  }
  out.sampling.temperature = value.get<float>();
  return {};
}

Refusal read_top_p(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_number() || !(value.get<float>() > 0) || value.get<double>() > 1) {
    return wrong(name, "must be a number above 0 and at most 1, not " + quoted(value));
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

Refusal read_seed(const json& value, std::string_view name, CompletionRequest& out) {
  if (!value.is_number_integer()) return wrong(name, "must be an integer, not " + quoted(value));
  out.seed = value.get<std::uint64_t>();  // negative ones wrap: any 64 bits are a seed
  return {};
}

Refusal read_stop(const json& value, std::string_view name, CompletionRequest& out) {
  const json list = value.is_array() ? value : json::array({value});
  if (list.size() > kStopStringsMax) {
    return wrong(name, "holds " + std::to_string(list.size()) + " strings; at most " +
                           std::to_string(kStopStringsMax) + " are allowed");
  }
  for (const json& item : list) {
    std::string text;
    if (Refusal refusal = read_string(item, name, text)) return refusal;
    if (text.empty() || text.size() > kStopStringBytesMax) {
      return wrong(name, "must hold strings of 1 to " + std::to_string(kStopStringBytesMax) +
                             " bytes, not " + std::to_string(text.size()));
    }
    out.stop.push_back(std::move(text));
  }
  return {};
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
  if (!value.is_object()) return wrong(name, "must be an object, not " + quoted(value));
  for (const auto& [key, option] : value.items()) {
    const std::string option_name = std::string(name) + "." + key;
    if (key == "include_usage") {
      if (Refusal refusal = read_bool(option, option_name, out.include_usage)) return refusal;
    } else if (key != "continuous_usage_stats" || option != false) {
      return wrong(option_name, "is not supported");
    }
  }
  return {};
}

Refusal read_user(const json& value, std::string_view name, CompletionRequest&) {
  std::string ignored;
  return read_string(value, name, ignored);
}

Refusal read_kv_transfer_params(const json& value, std::string_view, CompletionRequest& out) {
  ApiResult<std::optional<KvTransfer>> read = read_kv_params(value);
  if (ApiError* error = std::get_if<ApiError>(&read)) return std::move(*error);
  out.kv_transfer = std::get<0>(std::move(read));
  return {};
}

struct Field {
  std::string_view name;
  bool completions;
  bool chat;
  Refusal (*read)(const json& value, std::string_view name, CompletionRequest& out);
};

// Fields that mean something here. null means absent, as in OpenAI's API.
constexpr std::array<Field, 16> kFields = {{
    {"model", true, true, read_model},
    {"prompt", true, false, read_prompt},
    {"messages", false, true, read_messages},
    {"max_tokens", true, true, read_max_tokens},
    {"max_completion_tokens", true, true, read_max_tokens},
    {"temperature", true, true, read_temperature},
    {"top_p", true, true, read_top_p},
    {"top_k", true, true, read_top_k},
    {"seed", true, true, read_seed},
    {"stop", true, true, read_stop},
    {"ignore_eos", true, true, read_ignore_eos},
    {"stream", true, true, read_stream},
    {"stream_options", true, true, read_stream_options},
    {"return_token_ids", true, true, read_return_token_ids},
    {"user", true, true, read_user},
    {"kv_transfer_params", true, true, read_kv_transfer_params},
}};

// Known fields that kvlane does not do, and the values with which they change nothing: clients and
// benchmark tools send these.
struct Neutral {
  std::string_view name;
  std::string_view values;  // a JSON array
};
constexpr std::array<Neutral, 36> kNeutral = {{
    {"n", "[1]"},
    {"best_of", "[1]"},
    {"echo", "[false]"},
    {"logprobs", "[false]"},
    {"top_logprobs", "[0]"},
    {"prompt_logprobs", "[]"},
    {"suffix", R"([""])"},
    {"presence_penalty", "[0]"},
    {"frequency_penalty", "[0]"},
    {"repetition_penalty", "[1]"},
    {"length_penalty", "[1]"},
    {"logit_bias", "[{}]"},
    {"min_p", "[0]"},
    {"min_tokens", "[0]"},
    {"use_beam_search", "[false]"},
    {"stop_token_ids", "[[]]"},
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
    {"cache_salt", "[]"},
    {"priority", "[0]"},
}};

Refusal check_neutral(const std::string& name, const json& value) {
  const auto* const found = std::find_if(kNeutral.begin(), kNeutral.end(),
                                         [&](const Neutral& n) { return n.name == name; });
  if (found == kNeutral.end()) {
    return ApiError{400, "Unknown field '" + name.substr(0, 100) + "'.", name.substr(0, 100), ""};
  }
  if (value.is_null()) return {};
  const json neutral = json::parse(found->values);
  if (std::find(neutral.begin(), neutral.end(), value) != neutral.end()) return {};
  const std::string instead =
      neutral.empty() ? "leave it out" : "leave it out or send " + neutral[0].dump();
  return wrong(name, "= " + quoted(value) + " is not supported; " + instead);
}

Refusal check_whole(const json& body, const CompletionRequest& request) {
  const char* const prompt = request.api == Api::kChat ? "messages" : "prompt";
  if (!body.contains(prompt) || body[prompt].is_null()) return wrong(prompt, "is missing");
  const bool has_stream_options =
      body.contains("stream_options") && !body["stream_options"].is_null();
  if (has_stream_options && !request.stream) {
    return wrong("stream_options", "is only allowed when 'stream' is true");
  }
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
    const auto* const field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) {
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
