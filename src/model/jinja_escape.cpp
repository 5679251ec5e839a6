// Python's unicode_escape, as far as templates need it.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_escape.h"

#include <charconv>
#include <cstdint>
#include <optional>

#include "model/utf8.h"

namespace kvlane::jinja {
namespace {

constexpr std::string_view kSimple = "\\'\"abfnrtv";
constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
static_assert(kSimple.size() == kMeaning.size());

// Exactly `count` digits at the beginning of `text`.
std::optional<std::uint32_t> leading_number(std::string_view text, std::size_t count, int base) {
  if (text.size() < count) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + count, value, base);
  if (error != std::errc() || end != text.data() + count) return std::nullopt;
  return value;
}

std::size_t octal_digits(std::string_view text) {
  std::size_t count = 0;
  while (count < 3 && count < text.size() && text[count] >= '0' && text[count] <= '7') ++count;
  return count;
}

// Appends what the escape means whose text after the backslash begins `rest`; returns its length.
Result<std::size_t> resolve_one(std::string_view rest, std::string& value) {
  const char c = rest[0];
  if (const std::size_t at = kSimple.find(c); at != std::string_view::npos) {
    value += kMeaning[at];
    return std::size_t{1};
  }
  if (c == '\n') return std::size_t{1};  // the line goes on
  if (c == 'N') return unsupported("the escape '\\N' is not supported");
  if (static_cast<unsigned char>(c) >= 0x80) {
    return unsupported("a backslash before a character that is not ASCII is not supported");
  }
  std::size_t skip = 1;
  std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  int base = 16;
  if (const std::size_t octal = octal_digits(rest); octal > 0) {
    skip = 0;
    digits = octal;
    base = 8;
  }
  if (digits == 0) {
    value += '\\';
    return std::size_t{0};
  }
  const std::optional<std::uint32_t> code_point = leading_number(rest.substr(skip), digits, base);
  if (!code_point || *code_point > 0x10FFFF) {
    return corrupt("the escape '\\" + std::string(1, c) + "' is not complete");
  }
  if (*code_point >= 0xD800 && *code_point < 0xE000) {
    return unsupported("a surrogate in a string is not supported");
  }
  append_utf8(value, *code_point);
  return skip + digits;
}

}  // namespace

Result<std::string> resolve_escapes(std::string_view literal) {
  std::string value;
  value.reserve(literal.size());
  while (!literal.empty()) {
    const std::size_t plain = std::min(literal.find('\\'), literal.size());
    value.append(literal.substr(0, plain));
    literal.remove_prefix(plain);
    if (literal.empty()) break;
    literal.remove_prefix(1);
    if (literal.empty()) return corrupt("a string ends with a backslash");
    KVLANE_ASSIGN(const std::size_t bytes, resolve_one(literal, value));
    literal.remove_prefix(bytes);
  }
  return value;
}

}  // namespace kvlane::jinja
