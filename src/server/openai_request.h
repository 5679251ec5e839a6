// Requests of OpenAI's completion APIs, read strictly: what is not understood is refused by name.
// Every field and value that is accepted: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/kv_params.h"
#include "server/prompt_fields.h"

namespace kvlane {

enum class Api { kCompletions, kChat };

// The route of an API: "/v1/completions", "/v1/chat/completions".
std::string_view api_path(Api api);

// A request as far as it can be understood without a model.
struct CompletionRequest {
  Api api = Api::kCompletions;
  std::string model;                  // empty: whichever is served
  PromptField prompt;                 // kCompletions
  std::vector<ChatMessage> messages;  // kChat

  // As in GenerationRequest, but not yet held against the vocabulary and the context.
  std::optional<int> max_tokens;
  int min_tokens = 0;
  int n = 1;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_tokens;
  bool ignore_eos = false;
  std::optional<int> logprobs;
  std::string cache_salt;
  int priority = 0;
  std::string client;

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // in every event of a stream
  bool return_token_ids = false;
  std::optional<KvTransfer> kv_transfer;
};

// Limits of a request, beside those of the engine and of HTTP.
inline constexpr std::size_t kStopStringsMax = 16;       // OpenAI allows 4
inline constexpr std::size_t kStopStringBytesMax = 256;  // each is searched for at every token
inline constexpr std::size_t kStopTokensMax = 64;
inline constexpr int kChoicesMax = 128;               // each is a sequence of its own
inline constexpr int kLogprobsMax = 20;               // OpenAI's and vLLM's
inline constexpr std::size_t kLogitBiasesMax = 1024;  // OpenAI allows 300
inline constexpr std::size_t kNameBytesMax = 256;     // of salts and users: tables hold them

// Reads a body. The error names the field that is wrong.
ApiResult<CompletionRequest> parse_completion_request(Api api, std::string_view body);
// The same for a body that is parsed already.
ApiResult<CompletionRequest> read_completion_request(Api api, const nlohmann::json& body);

}  // namespace kvlane
