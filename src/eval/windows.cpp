// Overlapping windows.
// SPDX-License-Identifier: Apache-2.0
#include "eval/windows.h"

#include <algorithm>
#include <cassert>

namespace kvlane {

std::vector<Window> make_windows(std::size_t text_tokens, int context, int stride) {
  assert(stride >= 1 && stride <= context && context >= 2);
  std::vector<Window> windows;
  std::size_t scored_until = 0;
  for (std::size_t first = 0; scored_until < text_tokens; first += stride) {
    const std::size_t end = std::min(first + context, text_tokens);
    // Nothing in the window predicts its first token.
    const std::size_t from = std::max(scored_until, first + 1);
    scored_until = end;
    if (from >= end) break;
    windows.push_back({first, static_cast<int>(end - first), static_cast<int>(end - from)});
  }
  return windows;
}

}  // namespace kvlane
