// Hexadecimal text back to bytes, as ids and model names travel. The other direction: crypto's
// to_hex.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
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

}  // namespace kvlane
