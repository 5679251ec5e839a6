// Normalisation form C from utf8proc's tables: decompose, order the marks, compose.
// SPDX-License-Identifier: Apache-2.0
#include "model/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "model/utf8.h"

namespace kvlane {
namespace {

// STABLE keeps to the compositions that the Unicode standard froze, as NFC demands.
constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);

utf8proc_propval_t combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// No character below U+0300 decomposes when composed text is wanted, or combines with one before
// it; U+0300 begins with the byte 0xCC.
bool is_surely_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

Result<std::vector<utf8proc_int32_t>> decompose(std::string_view text) {
  // Canonical decompositions have at most four characters; the slack is for the library's own
  // check.
  std::array<utf8proc_int32_t, 16> parts{};
  std::vector<utf8proc_int32_t> all;
  all.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    text.remove_prefix(step.bytes);
    int boundary_class = 0;  // of grapheme breaks, which are not asked for
    const auto code_point = static_cast<utf8proc_int32_t>(step.code_point);
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        code_point, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), kDecompose,
        &boundary_class);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
      return internal_error("utf8proc cannot decompose the character " +
                            std::to_string(code_point));
    }
    all.insert(all.end(), parts.begin(), parts.begin() + count);
  }
  return all;
}

// Canonical ordering: each run of combining marks sorted by class, equal classes in their order.
// The library's own is an insertion sort, quadratic in the length of a run.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  for (auto at = text.begin(); at != text.end();) {
    const auto first = std::find_if(at, text.end(), is_mark);
    const auto last = std::find_if_not(first, text.end(), is_mark);
    std::stable_sort(first, last, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    at = last;
  }
}

}  // namespace

Result<std::string> to_nfc(std::string_view text) {
  if (is_surely_nfc(text)) return std::string(text);
  try {
    KVLANE_ASSIGN(std::vector<utf8proc_int32_t> code_points, decompose(text));
    order_marks(code_points);
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(
        code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kCompose);
    if (count < 0) {
      return internal_error(std::string("utf8proc cannot compose: ") + utf8proc_errmsg(count));
    }
    code_points.resize(static_cast<std::size_t>(count));
    std::string composed;
    composed.reserve(text.size());
    for (const utf8proc_int32_t c : code_points)
      append_utf8(composed, static_cast<std::uint32_t>(c));
    return composed;
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory to normalise a text of " + std::to_string(text.size()) +
                     " bytes");
  }
}

}  // namespace kvlane
