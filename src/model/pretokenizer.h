// Cuts text into the words inside which tokens are merged, as "pre_tokenizer" of tokenizer.json
// says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/split_rule.h"

namespace kvlane {

// The rule of GPT-2, which the pre-tokenizer ByteLevel applies when it says "use_regex".
inline constexpr std::string_view kByteLevelRule =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Immutable, thread-safe.
class Pretokenizer {
 public:
  // `rules`: each splits the pieces that the one before it left. `prefix_space` puts a space before
  // each piece that does not begin with one, after the first `rules_before_prefix` of them.
  struct Options {
    std::vector<SplitRule> rules;
    std::size_t rules_before_prefix = 0;
    bool prefix_space = false;
  };
  explicit Pretokenizer(Options options) : options_(std::move(options)) {}

  // Gives the words of `text` (valid UTF-8) to `sink`, in order. They are valid during the call
  // only.
  Status split(std::string_view text, const PieceSink& sink) const;

 private:
  Status split_from(std::size_t rule, std::string_view text, const PieceSink& sink) const;

  Options options_;
};

}  // namespace kvlane
