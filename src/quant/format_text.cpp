// Takes the notation of formats apart.
// SPDX-License-Identifier: Apache-2.0
#include "quant/format_text.h"

#include <charconv>
#include <cmath>

namespace kvlane {
namespace {

constexpr int kWindowBlocksMax = 1024;

template <class T>
std::string listed(std::span<const T> values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " or " : ", ";
    if constexpr (std::is_same_v<T, int>) {
      text += std::to_string(values[i]);
    } else {
      text += values[i];
    }
  }
  return text;
}

bool to_int(const std::string& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// A number in parts of kShareParts; false where it has more decimals than these tell, or where
// nobody could mean it.
bool to_parts(const std::string& text, int& parts) {
  constexpr double kMost = 1e5;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (!(std::abs(value) <= kMost)) return false;
  const double whole = std::round(value * kShareParts);
  parts = static_cast<int>(whole);
  return std::abs(value * kShareParts - whole) < 1e-6;
}

}  // namespace

Status FormatText::wrong(const std::string& key, const std::string& value,
                         const std::string& right) const {
  return invalid_argument(noun_ + " '" + name_ + "': " + key + " is " + right + ", not '" + value +
                          "'");
}

Result<FormatText> FormatText::parse(std::string_view text, std::string_view noun) {
  FormatText result;
  result.noun_ = noun;
  if (const std::size_t plus = text.find('+'); plus != std::string_view::npos) {
    result.codes_ = text.substr(plus + 1);
    if (result.codes_.empty()) return invalid_argument("'+' is followed by a format");
    text = text.substr(0, plus);
  }
  const std::size_t colon = text.find(':');
  result.name_ = text.substr(0, colon);
  if (colon == std::string_view::npos) return result;
  std::string_view rest = text.substr(colon + 1);
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return invalid_argument(result.noun_ + " '" + std::string(text) +
                              "': expected KEY=VALUE, not '" + std::string(part) + "'");
    }
    const std::string key(part.substr(0, equals));
    if (!result.parameters_.emplace(key, part.substr(equals + 1)).second) {
      return invalid_argument(result.noun_ + " '" + std::string(text) + "': " + key +
                              " is given twice");
    }
    if (comma == std::string_view::npos) return result;
    rest.remove_prefix(comma + 1);
  }
}

Result<int> FormatText::one_of(const std::string& key, std::span<const int> allowed,
                               int otherwise) {
  const auto given = parameters_.extract(key);
  if (given.empty()) return otherwise;
  int value = 0;
  if (to_int(given.mapped(), value)) {
    for (const int candidate : allowed) {
      if (value == candidate) return value;
    }
  }
  return wrong(key, given.mapped(), listed(allowed));
}

Result<int> FormatText::within(const std::string& key, int least, int most, int otherwise) {
  const auto given = parameters_.extract(key);
  if (given.empty()) return otherwise;
  int value = 0;
  if (to_int(given.mapped(), value) && value >= least && value <= most) return value;
  return wrong(key, given.mapped(),
               "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<std::string> FormatText::word(const std::string& key,
                                     std::span<const std::string_view> allowed,
                                     std::string_view otherwise) {
  const auto given = parameters_.extract(key);
  if (given.empty()) return std::string(otherwise);
  for (const std::string_view candidate : allowed) {
    if (given.mapped() == candidate) return given.mapped();
  }
  return wrong(key, given.mapped(), listed(allowed));
}

Result<int> FormatText::share(const std::string& key, int otherwise) {
  const auto given = parameters_.extract(key);
  if (given.empty()) return otherwise;
  int parts = 0;
  if (to_parts(given.mapped(), parts) && parts > 0 && parts <= kShareParts) return parts;
  return wrong(key, given.mapped(), "a share above 0 and up to 1, with at most four decimals");
}

Result<int> FormatText::decimal(const std::string& key, int least, int most, int otherwise) {
  const auto given = parameters_.extract(key);
  if (given.empty()) return otherwise;
  int parts = 0;
  if (to_parts(given.mapped(), parts) && parts >= least && parts <= most) return parts;
  return wrong(key, given.mapped(),
               "a number from " + share_text(least) + " to " + share_text(most) +
                   ", with at most four decimals");
}

Result<KvWindow> FormatText::window() {
  KvWindow window;
  KVLANE_ASSIGN(window.sink, within("sink", 0, kWindowBlocksMax, 0));
  KVLANE_ASSIGN(window.recent, within("recent", 0, kWindowBlocksMax, 0));
  return window;
}

Status FormatText::finish() const {
  if (!codes_.empty()) {
    return invalid_argument("only what zack keeps can be coded in another format, not '" + name_ +
                            "+" + codes_ + "'");
  }
  if (parameters_.empty()) return {};
  return invalid_argument(noun_ + " '" + name_ + "' has no parameter '" +
                          parameters_.begin()->first + "'");
}

std::string share_text(int share) {
  std::string text = std::to_string(share / kShareParts);
  if (share % kShareParts == 0) return text;
  std::string decimals = std::to_string(kShareParts + share % kShareParts).substr(1);
  decimals.erase(decimals.find_last_not_of('0') + 1);
  return text + "." + decimals;
}

std::string window_text(const KvWindow& window) {
  std::string text;
  if (window.sink > 0) text += ",sink=" + std::to_string(window.sink);
  if (window.recent > 0) text += ",recent=" + std::to_string(window.recent);
  return text;
}

}  // namespace kvlane
