// From what clients send to the token ids a model starts from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvlane/status.h"
#include "model/chat_template.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "server/api_error.h"
#include "server/openai_request.h"

namespace kvlane {

// What the server needs of a model besides its engine. Implementations are thread-safe.
class Prompter {
 public:
  virtual ~Prompter() = default;
  virtual Result<std::vector<std::int32_t>> encode_text(const std::string& text) const = 0;
  // kInvalidArgument when the model has no chat template, kUnsupported when kvlane cannot use it.
  virtual Result<std::vector<std::int32_t>> encode_chat(
      const std::vector<ChatMessage>& messages) const = 0;
  virtual std::int32_t bos() const = 0;  // -1: none
  virtual int vocabulary() const = 0;
  virtual int context() const = 0;  // most tokens of prompt and answer together
};

// With a model's own tokenizer and template.
class ModelPrompter : public Prompter {
 public:
  // Keeps references: tokenizer, template and config outlive it. `chat_template` may be null;
  // `chat_problem` says why, unless the model just has none.
  ModelPrompter(const Tokenizer& tokenizer, const ChatTemplate* chat_template, Status chat_problem,
                const ModelConfig& config, int context);

  Result<std::vector<std::int32_t>> encode_text(const std::string& text) const override;
  Result<std::vector<std::int32_t>> encode_chat(
      const std::vector<ChatMessage>& messages) const override;
  std::int32_t bos() const override { return config_.bos; }
  int vocabulary() const override { return config_.vocab; }
  int context() const override { return context_; }

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_template_;
  Status chat_problem_;
  const ModelConfig& config_;
  int context_;
};

// Encodes the prompt and checks it and max_tokens against the context. An empty prompt is the BOS
// token. Without max_tokens: 16 for completions, the rest of the context for chats, as elsewhere.
ApiResult<GenerationRequest> make_generation_request(const CompletionRequest& request,
                                                     const Prompter& prompter);

}  // namespace kvlane
