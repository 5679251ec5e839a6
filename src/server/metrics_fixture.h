// For tests: reading Prometheus' text form.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string>

namespace kvlane {

// The value of the one sample with this name and these labels ('reason="stop"') among its own; -1
// when there is none.
inline double sample(const std::string& text, const std::string& name,
                     std::initializer_list<std::string> labels = {}) {
  std::istringstream lines(text);
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    const std::string::size_type end = line.find_first_of("{ ");
    bool matches = line[0] != '#' && line.substr(0, end) == name;
    for (const std::string& label : labels) {
      matches = matches && line.find(label) != std::string::npos;
    }
    if (!matches) continue;
    EXPECT_TRUE(found.empty()) << "both " << found << " and " << line;
    found = line;
  }
  return found.empty() ? -1 : std::strtod(found.c_str() + found.rfind(' '), nullptr);
}

}  // namespace kvlane
