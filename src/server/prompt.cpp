// Encoding prompts, and the context limit.
// SPDX-License-Identifier: Apache-2.0
#include "server/prompt.h"

#include <algorithm>
#include <utility>

#include "model/utf8.h"
#include "server/json_field.h"

namespace kvlane {

namespace {

constexpr int kDefaultCompletionTokens = 16;  // OpenAI's and vLLM's

const char* prompt_field(const CompletionRequest& request) {
  return request.api == Api::kChat ? "messages" : "prompt";
}

ApiError wrong_prompt(const CompletionRequest& request, std::string message,
                      std::string code = "") {
  return {400, std::move(message), prompt_field(request), std::move(code)};
}

Result<std::vector<std::int32_t>> encode(const CompletionRequest& request,
                                         const Prompter& prompter) {
  if (request.api == Api::kChat) return prompter.encode_chat(request.messages, true);
  if (!request.prompt.ids.empty()) return request.prompt.ids;
  if (request.prompt.text.empty()) return std::vector<std::int32_t>();
  return prompter.encode_text(request.prompt.text, true);
}

// In vLLM's words, which clients search for.
ApiError too_long(const CompletionRequest& request, int context, std::size_t prompt) {
  const std::string limit =
      "This model's maximum context length is " + std::to_string(context) + " tokens. However, ";
  const std::string where = request.api == Api::kChat ? "messages" : "prompt";
  const std::string prompt_tokens = std::to_string(prompt);
  if (!request.max_tokens || prompt >= static_cast<std::size_t>(context)) {
    return wrong_prompt(request,
                        limit + "your request has " + prompt_tokens +
                            " input tokens. Please reduce the length of the " + where + ".",
                        "context_length_exceeded");
  }
  const std::size_t total = prompt + static_cast<std::size_t>(*request.max_tokens);
  ApiError error = wrong_prompt(
      request,
      limit + "you requested " + std::to_string(total) + " tokens (" + prompt_tokens + " in the " +
          where + ", " + std::to_string(*request.max_tokens) +
          " in the completion). Please reduce the length of the " + where + " or completion.",
      "context_length_exceeded");
  error.param = "max_tokens";
  return error;
}

Refusal check_vocabulary(const CompletionRequest& request, const std::vector<std::int32_t>& prompt,
                         int vocabulary) {
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= vocabulary; };
  const auto message = [&](const std::string& where, std::int32_t id) {
    return where + " contains token id " + std::to_string(id) +
           ", which is outside the vocabulary of " + std::to_string(vocabulary) + " tokens.";
  };
  for (const std::int32_t id : prompt) {
    if (outside(id)) return wrong_prompt(request, message("The prompt", id));
  }
  for (const std::int32_t id : request.stop_tokens) {
    if (outside(id)) return ApiError{400, message("'stop_token_ids'", id), "stop_token_ids", ""};
  }
  for (const LogitBias& bias : request.sampling.logit_bias) {
    if (outside(bias.token)) {
      return ApiError{400, message("'logit_bias'", bias.token), "logit_bias", ""};
    }
  }
  return {};
}

Refusal check_lengths(const CompletionRequest& request, int max_tokens) {
  if (request.min_tokens > max_tokens) {
    return wrong_field("min_tokens", "is " + std::to_string(request.min_tokens) +
                                         ", more than the " + std::to_string(max_tokens) +
                                         " tokens that the answer may have");
  }
  if (!request.logprobs) return {};
  const std::int64_t entries = std::int64_t{request.n} * max_tokens * (*request.logprobs + 1);
  if (entries <= kLogprobEntriesMax) return {};
  return wrong_field(request.api == Api::kChat ? "top_logprobs" : "logprobs",
                     "asks for up to " + std::to_string(entries) +
                         " log probabilities with these numbers of answers and tokens; at most " +
                         std::to_string(kLogprobEntriesMax) + " are told in one request");
}

}  // namespace

ModelPrompter::ModelPrompter(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                             Status chat_problem, const ModelConfig& config, int context)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      chat_problem_(std::move(chat_problem)),
      config_(config),
      context_(context) {}

Result<std::vector<std::int32_t>> ModelPrompter::encode_text(const std::string& text,
                                                             bool add_special) const {
  KVLANE_TRY(check_utf8(text));
  return tokenizer_.encode(text, add_special);
}

Result<std::vector<std::int32_t>> ModelPrompter::encode_chat(
    const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  if (!chat_problem_.ok()) {
    return chat_problem_.with_context("This model's chat template cannot be used");
  }
  if (chat_template_ == nullptr) {
    return invalid_argument("This model has no chat template; use /v1/completions.");
  }
  KVLANE_ASSIGN(const std::string text, chat_template_->render(messages, add_generation_prompt));
  return tokenizer_.encode(text, false);
}

std::string ModelPrompter::token_bytes(std::int32_t id) const {
  return std::string(tokenizer_.token_bytes(id));
}

Result<std::vector<std::int32_t>> encode_chat_beginning(const std::vector<ChatMessage>& messages,
                                                        const Prompter& prompter) {
  // Two prompts that part behind these messages. What they share holds for all that go on so, also
  // where a template writes a chat's last message otherwise than those before it.
  std::vector<ChatMessage> one = messages;
  std::vector<ChatMessage> other = messages;
  if (!messages.empty() && messages.back().role == "user") {
    other.push_back({"assistant", "0"});
  } else {
    one.push_back({"user", "1"});
  }
  other.push_back({"user", "0"});
  KVLANE_ASSIGN(std::vector<std::int32_t> ids, prompter.encode_chat(one, true));
  KVLANE_ASSIGN(const std::vector<std::int32_t> other_ids, prompter.encode_chat(other, true));
  ids.erase(std::mismatch(ids.begin(), ids.end(), other_ids.begin(), other_ids.end()).first,
            ids.end());
  return ids;
}

ApiResult<GenerationRequest> make_generation_request(const CompletionRequest& request,
                                                     const Prompter& prompter) {
  Result<std::vector<std::int32_t>> ids = encode(request, prompter);
  if (!ids.ok()) {
    ApiError error = to_api_error(ids.status());
    error.param = prompt_field(request);
    return error;
  }
  if (Refusal refusal = check_vocabulary(request, *ids, prompter.vocabulary())) {
    return std::move(*refusal);
  }
  if (ids->empty()) {
    if (prompter.bos() < 0) {
      return wrong_prompt(request,
                          "The prompt is empty and this model has no BOS token to start from.");
    }
    ids->push_back(prompter.bos());
  }

  const auto context = static_cast<std::size_t>(prompter.context());
  const std::size_t room = context - std::min(context, ids->size());
  const std::size_t by_default =
      request.api == Api::kChat ? room : std::min<std::size_t>(kDefaultCompletionTokens, room);
  const std::size_t max_tokens =
      request.max_tokens ? static_cast<std::size_t>(*request.max_tokens) : by_default;
  if (room == 0 || max_tokens > room) return too_long(request, prompter.context(), ids->size());
  if (Refusal refusal = check_lengths(request, static_cast<int>(max_tokens))) {
    return std::move(*refusal);
  }

  GenerationRequest generation;
  generation.prompt = std::move(*ids);
  generation.sampling = request.sampling;
  generation.seed = request.seed;
  generation.n = request.n;
  generation.max_tokens = static_cast<int>(max_tokens);
  generation.min_tokens = request.min_tokens;
  generation.stop = request.stop;
  generation.stop_tokens = request.stop_tokens;
  generation.ignore_eos = request.ignore_eos;
  generation.logprobs = request.logprobs;
  generation.cache_salt = request.cache_salt;
  generation.priority = request.priority;
  generation.client = request.client;
  return generation;
}

}  // namespace kvlane
