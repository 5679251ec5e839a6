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
  // `add_special`: with BOS and the like, where the model wants them.
  virtual Result<std::vector<std::int32_t>> encode_text(const std::string& text,
                                                        bool add_special) const = 0;
  // `add_generation_prompt`: with the beginning of the assistant's turn. kInvalidArgument when the
  // model has no chat template, kUnsupported when kvlane cannot use it.
  virtual Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages,
                                                        bool add_generation_prompt) const = 0;
  // The bytes of one token, which may be part of a character; a special token's are its name. Empty
  // for an id outside of the vocabulary.
  virtual std::string token_bytes(std::int32_t id) const = 0;
  // Special tokens are not part of an answer's text.
  virtual bool is_special(std::int32_t id) const = 0;
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

  Result<std::vector<std::int32_t>> encode_text(const std::string& text,
                                                bool add_special) const override;
  Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages,
                                                bool add_generation_prompt) const override;
  std::string token_bytes(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override { return tokenizer_.is_special(id); }
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

// The tokens with which every prompt begins that goes on from these messages, whatever is said
// next; `messages` are checked (read_messages). Behind a user's message the assistant speaks next,
// else the user. Fails as encode_chat() does, of the chats that go on so, too.
Result<std::vector<std::int32_t>> encode_chat_beginning(const std::vector<ChatMessage>& messages,
                                                        const Prompter& prompter);

// Log probabilities in one request at most: tokens of all answers, each with its most likely ones.
// As JSON they take some hundred bytes each, in an answer that is not streamed all at once.
inline constexpr std::int64_t kLogprobEntriesMax = 1 << 20;

// Encodes the prompt, and checks the request against vocabulary and context. An empty prompt is the
// BOS token. Without max_tokens: 16 for completions, the rest of the context for chats, as
// elsewhere.
ApiResult<GenerationRequest> make_generation_request(const CompletionRequest& request,
                                                     const Prompter& prompter);

}  // namespace kvlane
