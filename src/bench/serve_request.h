// The bodies of completion requests: prompts as token ids, as text, or as a chat.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvlane/status.h"
#include "server/openai_request.h"

namespace kvlane {

struct RequestSettings {
  Api api = Api::kCompletions;
  // Prompts as made-up text, about one token a word, for servers that refuse ids. Chats always are.
  bool text = false;
  std::string model;  // empty: not named
  double temperature = 0;
  std::optional<double> top_p;
  std::optional<int> top_k;
  bool ignore_eos = true;
  bool return_token_ids = true;  // so that tokens can be counted in every event
  std::string extra_body;        // a JSON object with further fields, or empty
};

// What all requests of a run have in common. Immutable, so any thread may use it.
class RequestFormat {
 public:
  // kInvalidArgument when extra_body is not a JSON object.
  static Result<RequestFormat> create(const RequestSettings& settings);

  bool as_chat() const { return chat_; }
  bool as_text() const { return text_; }

  std::string body_with_ids(std::span<const std::int32_t> prompt, int max_tokens) const;
  std::string body_with_text(const std::string& prompt, int max_tokens) const;
  std::string body_with_chat(std::span<const ChatMessage> messages, int max_tokens) const;

 private:
  RequestFormat() = default;
  std::string body(const std::string& prompt_member, int max_tokens) const;

  bool chat_ = false;
  bool text_ = false;
  std::string common_;  // members that never change: ", "a": 1, ..."
};

// A conversation so far, in the form in which it is sent.
class Dialogue {
 public:
  explicit Dialogue(const RequestFormat& format) : format_(format) {}  // which outlives it

  void ask(std::span<const std::int32_t> ids);
  // `ids` are what counts when prompts are sent as ids, `text` otherwise.
  void answered(std::span<const std::int32_t> ids, const std::string& text);

  // The request for the next answer.
  std::string body(int max_tokens) const;

 private:
  const RequestFormat& format_;
  std::vector<std::int32_t> ids_;
  std::string text_;
  std::vector<ChatMessage> messages_;
};

// Words that stand for token ids, a space behind each: the same text for the same ids. Common ones,
// which tokenizers know as one token.
std::string words_for(std::span<const std::int32_t> ids);

}  // namespace kvlane
