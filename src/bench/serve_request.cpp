// Bodies put together from a part that never changes and a prompt.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_request.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 64> kWords = {
    "the",   "of",   "and",  "to",   "in",    "that",  "was",   "his",   "he",   "it",   "with",
    "is",    "for",  "as",   "had",  "you",   "not",   "be",    "her",   "on",   "at",   "by",
    "which", "have", "or",   "from", "this",  "him",   "but",   "all",   "she",  "they", "were",
    "my",    "are",  "me",   "one",  "their", "so",    "an",    "said",  "them", "we",   "who",
    "would", "been", "will", "no",   "when",  "there", "if",    "more",  "out",  "up",   "into",
    "do",    "any",  "your", "what", "has",   "man",   "could", "other", "than"};

}  // namespace

Result<RequestFormat> RequestFormat::create(const RequestSettings& settings) {
  RequestFormat format;
  format.chat_ = settings.api == Api::kChat;
  format.text_ = settings.text || format.chat_;
  json common = {{"temperature", settings.temperature},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
  if (!settings.model.empty()) common["model"] = settings.model;
  if (settings.top_p) common["top_p"] = *settings.top_p;
  if (settings.top_k) common["top_k"] = *settings.top_k;
  // Left out where they say nothing: strict servers refuse what they do not know.
  if (settings.ignore_eos) common["ignore_eos"] = true;
  if (settings.return_token_ids) common["return_token_ids"] = true;
  if (!settings.extra_body.empty()) {
    const Result<json> extra = parse_json(settings.extra_body);
    if (!extra.ok()) return extra.status().with_context("the extra body");
    if (!extra->is_object()) return invalid_argument("the extra body is not a JSON object");
    common.update(*extra);
  }
  format.common_ = to_text(common).substr(1);  // without the brace
  return format;
}

std::string RequestFormat::body(const std::string& prompt_member, int max_tokens) const {
  return "{" + prompt_member + ",\"max_tokens\":" + std::to_string(max_tokens) + "," + common_;
}

std::string RequestFormat::body_with_ids(std::span<const std::int32_t> prompt,
                                         int max_tokens) const {
  constexpr std::size_t kDigitsMax = 12;
  std::string member = "\"prompt\":[";
  member.reserve(member.size() + prompt.size() * 7);
  std::array<char, kDigitsMax> digits{};
  for (const std::int32_t id : prompt) {
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), id).ptr;
    member.append(digits.data(), end);
    member += ',';
  }
  if (member.back() == ',') member.pop_back();
  return body(member + "]", max_tokens);
}

std::string RequestFormat::body_with_text(const std::string& prompt, int max_tokens) const {
  return body("\"prompt\":" + to_text(json(prompt)), max_tokens);
}

std::string RequestFormat::body_with_chat(std::span<const ChatMessage> messages,
                                          int max_tokens) const {
  json list = json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return body("\"messages\":" + to_text(list), max_tokens);
}

void Dialogue::ask(std::span<const std::int32_t> ids) {
  if (format_.as_chat()) {
    messages_.push_back({"user", words_for(ids)});
  } else if (format_.as_text()) {
    text_ += words_for(ids);
  } else {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
}

void Dialogue::answered(std::span<const std::int32_t> ids, const std::string& text) {
  if (format_.as_chat()) {
    messages_.push_back({"assistant", text});
  } else if (format_.as_text()) {
    text_ += text;
  } else {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
}

std::string Dialogue::body(int max_tokens) const {
  if (format_.as_chat()) return format_.body_with_chat(messages_, max_tokens);
  if (format_.as_text()) return format_.body_with_text(text_, max_tokens);
  return format_.body_with_ids(ids_, max_tokens);
}

std::string words_for(std::span<const std::int32_t> ids) {
  std::string text;
  text.reserve(ids.size() * 5);
  for (const std::int32_t id : ids) {
    text += kWords[static_cast<std::size_t>(id) % kWords.size()];
    text += ' ';
  }
  return text;
}

}  // namespace kvlane
