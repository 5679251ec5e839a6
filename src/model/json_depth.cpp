// One pass over the characters of a JSON text.
// SPDX-License-Identifier: Apache-2.0
#include "model/json_depth.h"

#include <algorithm>
#include <cstddef>

namespace kvlane {

int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string && c == '\\') {
      ++at;  // what it escapes may be a quote
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace kvlane
