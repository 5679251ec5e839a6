// Names in fields of fixed size: lower-case ASCII, then zeros (spec/frame.md, section 3).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace kvlane {

// 1 ... `bytes_max` bytes: the first of a-z, the others of a-z 0-9 _ : = , . + -.
inline bool is_field_name(std::string_view text, std::size_t bytes_max) {
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto allowed = [&](char c) {
    return lower(c) || (c >= '0' && c <= '9') || std::string_view("_:=,.+-").find(c) != text.npos;
  };
  return !text.empty() && text.size() <= bytes_max && lower(text.front()) &&
         std::all_of(text.begin(), text.end(), allowed);
}

// Precondition: the name is one, so it fits; `field` is all zeros.
template <std::size_t N>
void write_field_name(std::array<char, N>& field, std::string_view name) {
  std::copy(name.begin(), name.end(), field.begin());
}

// The name in a field with its padding taken off. Zeros inside stay, so that is_field_name refuses
// them.
template <std::size_t N>
std::string read_field_name(const std::array<char, N>& field) {
  std::string name(field.data(), N);
  name.erase(name.find_last_not_of('\0') + 1);
  return name;
}

// Quotes what may be anything: bytes outside printable ASCII become '?'.
inline std::string quoted_name(std::string_view text) {
  std::string shown = "'";
  for (const char c : text) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + "'";
}

}  // namespace kvlane
