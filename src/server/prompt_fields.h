// The two forms of a prompt in a request: 'prompt' of completions, 'messages' of chats.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat_template.h"
#include "server/json_field.h"

namespace kvlane {

inline constexpr std::size_t kMessagesMax = 4096;

// Ids when there are any, else the text, which may be empty.
struct PromptField {
  std::string text;
  std::vector<std::int32_t> ids;
};

// A string, an array of token ids, or an array with one of these.
Refusal read_prompt(const nlohmann::json& value, std::string_view name, PromptField& out);

// 1 to kMessagesMax messages of text.
Refusal read_messages(const nlohmann::json& value, std::string_view name,
                      std::vector<ChatMessage>& out);

}  // namespace kvlane
