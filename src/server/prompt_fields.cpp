// Strings, token ids and messages.
// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace kvlane {

using nlohmann::json;

namespace {

// The element that is no number at all is the more telling mistake.
Refusal read_prompt_ids(const json& value, std::string_view name, PromptField& out) {
  for (const json& id : value) {
    if (id.is_number_integer()) continue;
    return wrong_field(name,
                       "must be a string or an array of token ids; it contains " + quoted(id));
  }
  return read_token_ids(value, name, value.size(), out.ids);
}

// Content is a string, or an array of parts of which only text is supported.
Refusal read_content(const json& content, const std::string& name, std::string& out) {
  if (content.is_string()) return read_string(content, name, out);
  if (!content.is_array()) {
    return wrong_field(name, "must be a string or an array of text parts, not " + quoted(content));
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string part_name = name + "[" + std::to_string(i) + "]";
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return wrong_field(part_name, "must be an object with a 'type'");
    }
    if (part["type"] != "text") {
      return wrong_field(part_name,
                         "has the type " + quoted(part["type"]) + "; only text is supported");
    }
    if (!part.contains("text") || !part["text"].is_string() || part.size() != 2) {
      return wrong_field(part_name, "must have 'type' and a string 'text', and nothing else");
    }
    if (i > 0) out += '\n';
    out += part["text"].get<std::string>();
  }
  return {};
}

Refusal read_message(const json& message, const std::string& name, ChatMessage& out) {
  if (!message.is_object()) return wrong_field(name, "must be an object, not " + quoted(message));
  for (const auto& [key, value] : message.items()) {
    if (key != "role" && key != "content" && !value.is_null()) {
      return wrong_field(name + "." + key, "is not supported in a message");
    }
  }
  if (!message.contains("role")) return wrong_field(name + ".role", "is missing");
  if (!message.contains("content")) return wrong_field(name + ".content", "is missing");
  if (Refusal refusal = read_string(message["role"], name + ".role", out.role)) return refusal;
  constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};
  if (std::find(kRoles.begin(), kRoles.end(), out.role) == kRoles.end()) {
    return wrong_field(name + ".role",
                       "must be system, user or assistant, not " + quoted(message["role"]));
  }
  return read_content(message["content"], name + ".content", out.content);
}

}  // namespace

Refusal read_prompt(const json& value, std::string_view name, PromptField& out) {
  if (value.is_string()) return read_string(value, name, out.text);
  if (!value.is_array()) {
    return wrong_field(name, "must be a string or an array of token ids, not " + quoted(value));
  }
  if (value.empty() || value.front().is_number()) return read_prompt_ids(value, name, out);
  if (value.size() > 1) {
    return wrong_field(name, "holds " + std::to_string(value.size()) +
                                 " prompts; kvlane takes one prompt in a request");
  }
  const json& only = value.front();
  if (only.is_string()) return read_string(only, name, out.text);
  if (only.is_array()) return read_prompt_ids(only, name, out);
  return wrong_field(name,
                     "must be a string or an array of token ids; it contains " + quoted(only));
}

Refusal read_messages(const json& value, std::string_view name, std::vector<ChatMessage>& out) {
  if (!value.is_array() || value.empty() || value.size() > kMessagesMax) {
    return wrong_field(name,
                       "must be an array of 1 to " + std::to_string(kMessagesMax) + " messages");
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    ChatMessage message;
    const std::string item = std::string(name) + "[" + std::to_string(i) + "]";
    if (Refusal refusal = read_message(value[i], item, message)) return refusal;
    out.push_back(std::move(message));
  }
  return {};
}

}  // namespace kvlane
