// What "normalizer" of tokenizer.json does to text before it is split.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Longest text that a step puts in, in bytes: "▁" has three. With it text grows by no more than
// this factor in a step.
inline constexpr std::size_t kReplacementBytesMax = 64;
// Longest text that comes out, in bytes: far more than any sensible step makes of the longest text
// that goes in.
inline constexpr std::size_t kNormalizedBytesMax = std::size_t{256} << 20;

// Immutable, thread-safe.
class TextNormalizer {
 public:
  // Before a text that is not empty.
  struct Prepend {
    std::string text;
  };
  // Each `from`, which is not empty, from left to right.
  struct Replace {
    std::string from;
    std::string to;
  };
  struct Nfc {};
  using Step = std::variant<Prepend, Replace, Nfc>;

  explicit TextNormalizer(std::vector<Step> steps = {}) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  // All steps, one after another. `text` must be valid UTF-8, as what comes out is. kExhausted when
  // it grows above kNormalizedBytesMax.
  Result<std::string> apply(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace kvlane
