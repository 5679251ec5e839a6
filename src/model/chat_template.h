// Chat templates: the subset of Jinja that Llama 3 and Qwen3 checkpoints use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// Texts of special tokens by the names that templates know them by, such as "bos_token", of those
// that a model has.
using SpecialTokens = std::map<std::string, std::string>;

struct ChatMessage {
  std::string role;
  std::string content;
};

// Immutable, thread-safe. Movable.
class ChatTemplate {
 public:
  // From chat_template.jinja, else from "chat_template" of tokenizer_config.json, and where that
  // file is missing from the model's .gguf, which may stand for the directory. Special tokens are
  // those of tokenizer_config.json, of special_tokens_map.json in old checkpoints whose
  // tokenizer_config.json lists no tokens, or of the .gguf. kNotFound when the
  // checkpoint has none; kCorrupt for what is no template; kUnsupported names the construct that
  // kvlane does not do, with its line.
  static Result<ChatTemplate> load(const std::filesystem::path& directory);
  static Result<ChatTemplate> parse(std::string_view source, SpecialTokens tokens);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt text, ready for Tokenizer::encode(text, false): what transformers renders without
  // tools and documents, the date of today included where the template asks for it.
  // kInvalidArgument for messages that are not UTF-8, where the template raises an exception (with
  // its words), and where Jinja would; kUnsupported for filters, tests, functions and methods that
  // kvlane does not do, which come to light only when they are used; kExhausted beyond the limits
  // on size and work.
  Result<std::string> render(std::span<const ChatMessage> messages,
                             bool add_generation_prompt) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace kvlane
