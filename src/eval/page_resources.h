// Texts that the page of an evaluation is made of, compiled in by cmake/embed.cmake.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kvlane {

extern const std::string_view kChartScript;  // Chart.js, as Debian packages it
extern const std::string_view kPageScript;   // eval_page.js
extern const std::string_view kPageStyle;    // eval_page.css

}  // namespace kvlane
