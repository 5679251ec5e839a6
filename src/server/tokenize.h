// The routes /tokenize and /detokenize, with vLLM's fields: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/prompt.h"

namespace kvlane {

// Of one request: eight of the longest contexts. The answer has all of them at once.
inline constexpr std::size_t kTokenizeTokensMax = 1 << 20;

// Both read a body and give the JSON text of the answer, or the error that names the field that is
// wrong. A long text takes a while. Thread-safe.
ApiResult<std::string> tokenize(std::string_view body, const Prompter& prompter,
                                const std::string& model_name);
ApiResult<std::string> detokenize(std::string_view body, const Prompter& prompter,
                                  const std::string& model_name);

}  // namespace kvlane
