// Hexadecimal text and back, as ids, model names and names of tables travel. Bytes to text:
// crypto's to_hex.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvlane {

// Fills `bytes` from exactly twice as many lower-case digits; false when `text` is anything else,
// `bytes` then holds garbage.
inline bool parse_hex(std::string_view text, std::span<std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 2 * bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::size_t high = kDigits.find(text[2 * i]);
    const std::size_t low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

// 16 digits, the most significant first.
inline std::string hex_of_u64(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[value >> shift & 15U];
  return text;
}

inline bool parse_hex_u64(std::string_view text, std::uint64_t& value) {
  std::array<std::byte, sizeof(value)> bytes{};
  if (!parse_hex(text, bytes)) return false;
  value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::uint64_t>(byte);
  return true;
}

}  // namespace kvlane
