// Two forms of the same numbers.
// SPDX-License-Identifier: Apache-2.0
#include "server/logprobs_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "model/utf8.h"

namespace kvlane {

using nlohmann::json;

namespace {

// JSON has no infinity; vLLM says this instead.
constexpr float kLogprobMin = -9999;

float told(float logprob) { return std::max(logprob, kLogprobMin); }

json bytes_json(std::string_view bytes) {
  json list = json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

json chat_entry(std::int32_t token, float logprob, const Prompter& prompter) {
  const std::string bytes = prompter.token_bytes(token);
  // What is not UTF-8 in the name is replaced when the object becomes text.
  return {{"token", bytes}, {"logprob", told(logprob)}, {"bytes", bytes_json(bytes)}};
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// How many characters begin in these bytes.
std::int64_t characters_in(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char byte) { return !is_continuation(byte); });
}

// Different tokens need different names, for they are keys: half characters would all look alike.
std::string completion_name(std::int32_t token, const Prompter& prompter) {
  const std::string bytes = prompter.token_bytes(token);
  if (!find_invalid_utf8(bytes)) return bytes;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    name += "\\x";
    name += kDigits[value / 16];
    name += kDigits[value % 16];
  }
  return name;
}

}  // namespace

json chat_logprobs(std::span<const std::int32_t> tokens, std::span<const TokenLogprobs> logprobs,
                   const Prompter& prompter) {
  json content = json::array();
  for (std::size_t i = 0; i < std::min(tokens.size(), logprobs.size()); ++i) {
    json entry = chat_entry(tokens[i], logprobs[i].logprob, prompter);
    json& top = entry["top_logprobs"] = json::array();
    for (const TokenLogprob& likely : logprobs[i].top) {
      top.push_back(chat_entry(likely.token, likely.logprob, prompter));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

json completion_logprobs(std::span<const std::int32_t> tokens,
                         std::span<const TokenLogprobs> logprobs, const Prompter& prompter,
                         std::int64_t& characters) {
  json object = {{"tokens", json::array()},
                 {"token_logprobs", json::array()},
                 {"top_logprobs", json::array()},
                 {"text_offset", json::array()}};
  for (std::size_t i = 0; i < std::min(tokens.size(), logprobs.size()); ++i) {
    const std::string name = completion_name(tokens[i], prompter);
    json top = {{name, told(logprobs[i].logprob)}};
    for (const TokenLogprob& likely : logprobs[i].top) {
      top[completion_name(likely.token, prompter)] = told(likely.logprob);
    }
    object["tokens"].push_back(name);
    object["token_logprobs"].push_back(told(logprobs[i].logprob));
    object["top_logprobs"].push_back(std::move(top));
    object["text_offset"].push_back(characters);
    if (!prompter.is_special(tokens[i])) {
      characters += characters_in(prompter.token_bytes(tokens[i]));
    }
  }
  return object;
}

}  // namespace kvlane
