// Python's string methods over UTF-8.
// SPDX-License-Identifier: Apache-2.0
#include "model/python_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "model/jinja_lexer.h"
#include "model/utf8.h"

namespace kvlane::jinja {
namespace {

bool is_in(std::string_view character, std::optional<std::string_view> set) {
  // A character of UTF-8 never begins inside another, so that a search by bytes is one by
  // characters.
  if (set) return set->find(character) != std::string_view::npos;
  return is_python_space(next_utf8(character).code_point);
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, next_utf8(text).bytes);
}

std::string_view last_character(std::string_view text) {
  std::size_t start = text.size() - 1;
  while ((static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  return text.substr(start);
}

}  // namespace

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    characters.push_back(first_character(text));
    text.remove_prefix(characters.back().size());
  }
  return characters;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set) {
  while (side != Side::kRight && !text.empty() && is_in(first_character(text), set)) {
    text.remove_prefix(first_character(text).size());
  }
  while (side != Side::kLeft && !text.empty() && is_in(last_character(text), set)) {
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t splits_max) {
  std::vector<std::string_view> parts;
  while (splits_max < 0 || static_cast<std::int64_t>(parts.size()) < splits_max) {
    const std::size_t at = text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t splits_max) {
  std::vector<std::string_view> parts;
  while (true) {
    text = strip(text, Side::kLeft, std::nullopt);
    if (text.empty()) return parts;
    if (splits_max >= 0 && static_cast<std::int64_t>(parts.size()) == splits_max) {
      parts.push_back(text);  // the rest as it is, its end included
      return parts;
    }
    std::size_t end = 0;
    while (end < text.size() && !is_in(first_character(text.substr(end)), std::nullopt)) {
      end += first_character(text.substr(end)).size();
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::optional<std::string> replace(std::string_view text, std::string_view old,
                                   std::string_view with, std::int64_t times_max,
                                   std::size_t bytes_max) {
  std::string result;
  for (std::int64_t times = 0; times_max < 0 || times < times_max; ++times) {
    const std::size_t at = text.find(old);
    if (at == std::string_view::npos) break;
    result.append(text.substr(0, at)).append(with);
    if (result.size() > bytes_max) return std::nullopt;
    text.remove_prefix(at + old.size());
  }
  result.append(text);
  if (result.size() > bytes_max) return std::nullopt;
  return result;
}

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kSpecial = "\"\\\b\f\n\r\t";
  constexpr std::string_view kEscape = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    if (const std::size_t at = kSpecial.find(c); at != std::string_view::npos) {
      out += '\\';
      out += kEscape[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> buffer{};
      std::snprintf(buffer.data(), buffer.size(), "\\u%04x", static_cast<unsigned>(c));
      out += buffer.data();
    } else {
      out += c;
    }
  }
  out += '"';
}

SliceRange slice_range(std::size_t size, std::optional<std::int64_t> start,
                       std::optional<std::int64_t> stop, std::int64_t step) {
  const auto count = static_cast<std::int64_t>(size);
  // Python's rule: from the end if negative, then cut to what exists; backwards, "before the first"
  // does.
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? count : count - 1;
  const auto place = [&](std::int64_t at) {
    if (at < 0) at = at < -count ? low : at + count;
    return std::clamp(at, low, high);
  };
  const std::int64_t from = start ? place(*start) : step > 0 ? low : high;
  const std::int64_t to = stop ? place(*stop) : step > 0 ? high : low;
  // A longer step takes one item as well; cutting it keeps sums from overflowing.
  return {from, to, std::clamp(step, -count - 1, count + 1)};
}

std::string slice_text(std::string_view text, std::optional<std::int64_t> start,
                       std::optional<std::int64_t> stop, std::int64_t step) {
  const SliceRange range = slice_range(count_characters(text), start, stop, step);
  std::string result;
  if (step == 1) {
    std::int64_t at = 0;
    for (; at < range.from; ++at) text.remove_prefix(first_character(text).size());
    for (; at < range.to; ++at) {
      result.append(first_character(text));
      text.remove_prefix(first_character(text).size());
    }
    return result;
  }
  const std::vector<std::string_view> characters = characters_of(text);
  for (std::int64_t at = range.from; range.has(at); at += range.stride) {
    result.append(characters[static_cast<std::size_t>(at)]);
  }
  return result;
}

}  // namespace kvlane::jinja
