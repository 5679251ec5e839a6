// The 256 characters that stand for bytes in the vocabularies of byte-level BPE.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvlane {

// tokenizer.json is text, so GPT-2 wrote each byte of a token as a printable character: those of
// Latin-1 that are visible stand for themselves, the other 68 bytes for U+0100 onwards, in order.
// Returns any bytes in that spelling.
std::string byte_level_of_bytes(std::string_view bytes);

// The bytes that are spelt so; nullopt when `text` holds any other character, as the contents of
// added tokens may. Precondition: valid UTF-8.
std::optional<std::string> bytes_of_byte_level(std::string_view text);

}  // namespace kvlane
