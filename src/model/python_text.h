// What Python's str does, by characters: the methods that templates use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlane::jinja {

// All texts here are valid UTF-8.

// Characters, not bytes.
std::size_t count_characters(std::string_view text);
std::vector<std::string_view> characters_of(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
// str.strip, lstrip, rstrip: of white space, or of the characters in `set`.
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set);

// str.split(separator, splits_max): `separator` is not empty; negative `splits_max`: no limit.
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t splits_max);
// str.split(): at runs of white space, without empty parts.
std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t splits_max);

// str.replace for an `old` that is not empty, at most `times_max` times (negative: no limit).
// Nullopt when the result would have more than `bytes_max` bytes.
std::optional<std::string> replace(std::string_view text, std::string_view old,
                                   std::string_view with, std::int64_t times_max,
                                   std::size_t bytes_max);

// A string in JSON as json.dumps(ensure_ascii=False) writes it, quotes included.
void append_json_string(std::string& out, std::string_view text);

// The places that a slice [start:stop:step] of `size` items takes: `from`, `from + stride`, ... up
// to `to`, which is not taken. `step` is not 0.
struct SliceRange {
  std::int64_t from;
  std::int64_t to;
  std::int64_t stride;

  bool has(std::int64_t at) const { return stride > 0 ? at < to : at > to; }
};
SliceRange slice_range(std::size_t size, std::optional<std::int64_t> start,
                       std::optional<std::int64_t> stop, std::int64_t step);
// str[start:stop:step].
std::string slice_text(std::string_view text, std::optional<std::int64_t> start,
                       std::optional<std::int64_t> stop, std::int64_t step);

}  // namespace kvlane::jinja
