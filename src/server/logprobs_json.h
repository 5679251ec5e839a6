// Log probabilities as OpenAI's two APIs tell them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "engine/engine.h"
#include "server/prompt.h"

namespace kvlane {

// Of chats: {"content": [{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}]}, one
// entry a token. `tokens` and `logprobs` are of the same length.
nlohmann::json chat_logprobs(std::span<const std::int32_t> tokens,
                             std::span<const TokenLogprobs> logprobs, const Prompter& prompter);

// Of completions: {tokens, token_logprobs, top_logprobs, text_offset}, arrays with one entry a
// token. A token that is no whole character has the name "bytes:\xNN..."; a token that was drawn is
// among its most likely ones, if only as one more. `characters` is where in the text, in
// characters, the first token begins; it is moved behind the last.
nlohmann::json completion_logprobs(std::span<const std::int32_t> tokens,
                                   std::span<const TokenLogprobs> logprobs,
                                   const Prompter& prompter, std::int64_t& characters);

}  // namespace kvlane
