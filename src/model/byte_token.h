// The tokens "<0x00>" to "<0xFF>" by which sentencepiece says the bytes of characters without one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvlane {

// The name of the token of a byte: "<0x0A>" for a line feed.
std::string byte_token_name(char byte);

// The byte whose token has this name, in digits of either case; nullopt for another text.
std::optional<char> byte_of_token(std::string_view name);

}  // namespace kvlane
