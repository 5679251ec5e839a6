// Characters that the `tokenizers` package knows and PCRE2's older Unicode tables do not.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvlane {

// Code points `first` to `last`, all of one general category: by its two letters for letters and
// numbers ("Lo", "Nd"), by the first alone for marks, punctuation, symbols and separators ("M").
struct UnicodeAddition {
  std::uint32_t first;
  std::uint32_t last;
  std::string_view category;
};

// Ascending. A later PCRE2 knows some of them itself: adding them again changes nothing.
std::span<const UnicodeAddition> unicode_additions();

}  // namespace kvlane
