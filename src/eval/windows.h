// A long text cut into the windows that perplexity is measured over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace kvlane {

// The tokens [first, first + tokens) of a text as one sequence, of which the last `scored` count.
struct Window {
  std::size_t first;
  int tokens;
  int scored;
};

// Windows of at most `context` tokens that start every `stride` <= context tokens. Each token of
// the text but the first is scored exactly once, with as much text before it as its window has; so
// a stride below the context gives every scored token at least context - stride tokens of it.
std::vector<Window> make_windows(std::size_t text_tokens, int context, int stride);

}  // namespace kvlane
