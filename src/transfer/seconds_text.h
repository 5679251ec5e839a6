// Durations in sentences: "0.25 s" instead of six decimals.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <string>

#include "base/clock.h"

namespace kvlane {

inline std::string seconds_text(Seconds seconds) {
  std::array<char, 32> text{};
  const auto written =
      std::to_chars(text.begin(), text.end(), seconds.count(), std::chars_format::general, 6);
  return std::string(text.data(), written.ptr) + " s";
}

}  // namespace kvlane
