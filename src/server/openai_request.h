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
#include "model/chat_template.h"
#include "server/api_error.h"
#include "server/kv_params.h"

namespace kvlane {

enum class Api { kCompletions, kChat };

// The route of an API: "/v1/completions", "/v1/chat/completions".
std::string_view api_path(Api api);

// A request as far as it can be understood without a model.
struct CompletionRequest {
  Api api = Api::kCompletions;
  std::string model;  // empty: whichever is served
  // kCompletions: ids when there are any, else the text (which may be empty). kChat: messages.
  std::string prompt_text;
  std::vector<std::int32_t> prompt_ids;
  std::vector<ChatMessage> messages;

  std::optional<int> max_tokens;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  std::optional<KvTransfer> kv_transfer;
};

// Limits of a request, beside those of the engine and of HTTP.
inline constexpr std::size_t kStopStringsMax = 16;       // OpenAI allows 4
inline constexpr std::size_t kStopStringBytesMax = 256;  // each is searched for at every token
inline constexpr std::size_t kMessagesMax = 4096;

// Reads a body. The error names the field that is wrong.
ApiResult<CompletionRequest> parse_completion_request(Api api, std::string_view body);
// The same for a body that is parsed already.
ApiResult<CompletionRequest> read_completion_request(Api api, const nlohmann::json& body);

}  // namespace kvlane
