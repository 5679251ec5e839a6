// Encoding prompts, and the context limit.
// SPDX-License-Identifier: Apache-2.0
#include "server/prompt.h"

#include <algorithm>
#include <utility>

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
  if (request.api == Api::kChat) return prompter.encode_chat(request.messages);
  if (!request.prompt_ids.empty()) return request.prompt_ids;
  if (request.prompt_text.empty()) return std::vector<std::int32_t>();
  return prompter.encode_text(request.prompt_text);
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

}  // namespace

ModelPrompter::ModelPrompter(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                             Status chat_problem, const ModelConfig& config, int context)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      chat_problem_(std::move(chat_problem)),
      config_(config),
      context_(context) {}

Result<std::vector<std::int32_t>> ModelPrompter::encode_text(const std::string& text) const {
  return tokenizer_.encode(text);
}

Result<std::vector<std::int32_t>> ModelPrompter::encode_chat(
    const std::vector<ChatMessage>& messages) const {
  if (!chat_problem_.ok()) {
    return chat_problem_.with_context("This model's chat template cannot be used");
  }
  if (chat_template_ == nullptr) {
    return invalid_argument("This model has no chat template; use /v1/completions.");
  }
  KVLANE_ASSIGN(const std::string text, chat_template_->render(messages, true));
  return tokenizer_.encode(text, false);
}

ApiResult<GenerationRequest> make_generation_request(const CompletionRequest& request,
                                                     const Prompter& prompter) {
  Result<std::vector<std::int32_t>> ids = encode(request, prompter);
  if (!ids.ok()) {
    ApiError error = to_api_error(ids.status());
    error.param = prompt_field(request);
    return error;
  }
  for (const std::int32_t id : *ids) {
    if (id >= 0 && id < prompter.vocabulary()) continue;
    return wrong_prompt(request, "The prompt contains token id " + std::to_string(id) +
                                     ", which is outside the vocabulary of " +
                                     std::to_string(prompter.vocabulary()) + " tokens.");
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

  GenerationRequest generation;
  generation.prompt = std::move(*ids);
  generation.sampling = request.sampling;
  generation.seed = request.seed;
  generation.max_tokens = static_cast<int>(max_tokens);
  generation.stop = request.stop;
  generation.ignore_eos = request.ignore_eos;
  return generation;
}

}  // namespace kvlane
