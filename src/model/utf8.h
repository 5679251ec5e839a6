// UTF-8 as text arrives and leaves: validated once, and replaced by U+FFFD where it is broken.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

inline constexpr std::uint32_t kReplacementCharacter = 0xFFFD;

// What stands at the beginning of some bytes: one character, or the longest run of bytes that
// begins like one and goes wrong (the "maximal subpart" of the Unicode standard, section 3.9). One
// such run becomes one U+FFFD, as in Python's bytes.decode('utf-8', 'replace').
struct Utf8Step {
  enum class Kind {
    kCharacter,
    kInvalid,    // no further byte can make this a character
    kTruncated,  // the bytes end inside what may still become a character
  };
  Kind kind = Kind::kCharacter;
  std::uint32_t code_point = kReplacementCharacter;  // of a character
  std::size_t bytes = 0;                             // at least 1
};

// Precondition: `bytes` is not empty. Surrogates, overlong forms and values above U+10FFFF are
// invalid.
Utf8Step next_utf8(std::string_view bytes);

// The offset of the first byte of the first invalid or truncated sequence; nullopt for valid UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view bytes);

// kInvalidArgument, with the offset, for text that is not valid UTF-8: a tokenizer would take what
// is broken for U+FFFD, and whoever gave the text should rather know.
Status check_utf8(std::string_view text);

// Precondition: `code_point` is a Unicode scalar value.
void append_utf8(std::string& text, std::uint32_t code_point);

// What becomes one U+FFFD: such a run, or each of its bytes, as sentencepiece has it.
enum class InvalidUnit { kSequence, kByte };

// Appends `bytes` with every invalid or truncated sequence replaced by U+FFFD.
void append_replacing_invalid(std::string& text, std::string_view bytes,
                              InvalidUnit unit = InvalidUnit::kSequence);

// How many of the last bytes (0 to 3) are the beginning of a character that may still be completed.
std::size_t truncated_utf8_tail(std::string_view bytes);

// Unicode's White_Space: what `\s` of the `tokenizers` package matches.
bool is_white_space(std::uint32_t code_point);

}  // namespace kvlane
