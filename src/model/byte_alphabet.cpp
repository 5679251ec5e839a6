// GPT-2's byte alphabet as two tables.
// SPDX-License-Identifier: Apache-2.0
#include "model/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "model/utf8.h"

namespace kvlane {
namespace {

constexpr std::uint32_t kAlphabetEnd = 256 + 68;

constexpr bool is_visible(std::uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The byte of each character below kAlphabetEnd; -1: it stands for none.
constexpr std::array<std::int16_t, kAlphabetEnd> make_bytes() {
  std::array<std::int16_t, kAlphabetEnd> bytes{};
  for (std::int16_t& byte : bytes) byte = -1;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    bytes[is_visible(byte) ? byte : next++] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<std::int16_t, kAlphabetEnd> kAlphabetBytes = make_bytes();
static_assert(kAlphabetBytes[kAlphabetEnd - 1] == 0xAD,
              "the soft hyphen is the last byte without a shape");

constexpr std::array<std::uint16_t, 256> make_characters() {
  std::array<std::uint16_t, 256> characters{};
  for (std::uint16_t c = 0; c < kAlphabetEnd; ++c) {
    if (kAlphabetBytes[c] >= 0) characters[static_cast<std::size_t>(kAlphabetBytes[c])] = c;
  }
  return characters;
}

constexpr std::array<std::uint16_t, 256> kCharacters = make_characters();

}  // namespace

std::string byte_level_of_bytes(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) append_utf8(text, kCharacters[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> bytes_of_byte_level(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.code_point >= kAlphabetEnd || kAlphabetBytes[step.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabetBytes[step.code_point]));
    text.remove_prefix(step.bytes);
  }
  return bytes;
}

}  // namespace kvlane
