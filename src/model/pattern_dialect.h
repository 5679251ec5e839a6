// Split rules of tokenizer.json, written for Oniguruma, in the words of PCRE2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// Longest split rule taken, in bytes. Those of known models are below 1,000.
inline constexpr std::size_t kPatternBytesMax = 16U << 10;

// The two engines differ in what \s, \v, \h, (?i), ^ or stacked quantifiers mean and in the version
// of Unicode they know, and a different split is a different prompt. So this takes only what is
// known to mean the same or can be said in other words: literals, '.', alternatives, groups,
// look-around, quantifiers, classes, \s \S \d \D and the properties L M N P S Z, Lu Ll Lt Lm Lo, Nd
// Nl No. All else is kUnsupported, named with its offset. `pattern` must be valid UTF-8.
Result<std::string> to_pcre2_pattern(std::string_view pattern);

}  // namespace kvlane
