// Chat templates: the subset of Jinja that Llama 3 and Qwen3 checkpoints use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Immutable, thread-safe. Movable.
class ChatTemplate {
 public:
  // From chat_template.jinja, else from "chat_template" of tokenizer_config.json. kNotFound when the
  // checkpoint has none; kUnsupported names the construct that kvlane does not do.
  static Result<ChatTemplate> load(const std::filesystem::path& directory);
  static Result<ChatTemplate> parse(std::string_view source, std::string bos, std::string eos);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt text, ready for Tokenizer::encode(text, false). raise_exception() of the template is
  // kInvalidArgument with its words.
  Result<std::string> render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace kvlane
