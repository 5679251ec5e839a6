// Cuts text into the words inside which tokens are merged, as "pre_tokenizer" of tokenizer.json
// says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvlane/status.h"
#include "model/split_behavior.h"
#include "model/split_rule.h"

namespace kvlane {

// The rule of GPT-2, which the pre-tokenizer ByteLevel applies when it says "use_regex".
inline constexpr std::string_view kByteLevelRule =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Numbers, of the pre-tokenizer Digits.
inline constexpr std::string_view kNumberRule = R"(\p{N})";

// What the pre-tokenizer Punctuation splits at: punctuation as of Unicode 8, and the symbols of
// ASCII.
std::string_view punctuation_rule();

// Immutable, thread-safe.
class Pretokenizer {
 public:
  struct Split {
    SplitRule rule;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  // Puts a space before each piece that does not begin with one.
  struct PrefixSpace {};
  // From here on pieces are spelt in the alphabet of byte_alphabet.h. For steps that follow
  // ByteLevel: what comes out at the end are bytes again.
  struct ByteAlphabet {};
  // Writes spaces as `mark`, puts one before pieces without, and splits before each.
  struct Metaspace {
    enum class Prepend { kNever, kFirst, kAlways };
    std::string mark;  // one character
    Prepend prepend = Prepend::kAlways;
    bool split = true;
  };
  using Step = std::variant<Split, PrefixSpace, ByteAlphabet, Metaspace>;

  // Each step takes the pieces that the one before it left.
  explicit Pretokenizer(std::vector<Step> steps);

  // Gives the words of `text` (valid UTF-8) to `sink`, in order. They are valid during the call
  // only, and valid UTF-8 unless there is a ByteAlphabet. `first`: nothing of the whole text comes
  // before `text`.
  Status split(std::string_view text, bool first, const PieceSink& sink) const;

 private:
  Status split_from(std::size_t step, std::string_view text, bool first,
                    const PieceSink& sink) const;

  std::vector<Step> steps_;
};

}  // namespace kvlane
