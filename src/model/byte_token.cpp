// Two hexadecimal digits there and back.
// SPDX-License-Identifier: Apache-2.0
#include "model/byte_token.h"

#include <charconv>

namespace kvlane {

std::string byte_token_name(char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto value = static_cast<unsigned char>(byte);
  return {'<', '0', 'x', kDigits[value >> 4], kDigits[value & 0xFU], '>'};
}

std::optional<char> byte_of_token(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name.back() != '>') return std::nullopt;
  unsigned value = 0;
  const char* const end = name.data() + 5;
  const auto [stop, error] = std::from_chars(name.data() + 3, end, value, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace kvlane
