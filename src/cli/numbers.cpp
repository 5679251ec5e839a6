// Every option of the program goes through here, so none needs a check of its own.
// SPDX-License-Identifier: Apache-2.0
#include "cli/numbers.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvlane {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <class Number>
bool overflows(std::string_view text) {
  Number number = 0;
  return std::from_chars(text.begin(), text.end(), number).ec == std::errc::result_out_of_range;
}

// Why CLI11 would take `text` for another whole number; empty if it would not.
std::string misread(const std::string& text, bool is_signed) {
  const bool negative = text.starts_with('-');
  if (negative && !is_signed) return text + " is negative";
  const std::string_view digits = std::string_view(text).substr(negative ? 1 : 0);
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) {
    return text + " begins with 0, decimal numbers do not";
  }
  const bool too_large = is_signed ? overflows<std::int64_t>(text) : overflows<std::uint64_t>(text);
  return too_large ? text + " is too large" : std::string();
}

}  // namespace

void check_numbers(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) check_numbers(*command);
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_unsigned = type.starts_with("UINT");
    const bool is_signed = type.starts_with("INT");
    if (!is_unsigned && !is_signed && !type.starts_with("FLOAT")) continue;
    for (const std::string& text : option->results()) {
      std::string reason = text.empty() ? "a number is missing" : "";
      if (is_unsigned || is_signed) reason += misread(text, is_signed);
      if (!reason.empty()) throw CLI::ValidationError(option->get_name(), reason);
    }
  }
}

}  // namespace kvlane
