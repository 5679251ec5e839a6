// Tokens that are recognised in the text itself, before any splitting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/literal_set.h"
#include "model/split_rule.h"

namespace kvlane {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  std::string pattern;      // what is searched for: the content, or what normalisation makes of it
  bool special = false;     // left out by decode()
  bool normalized = false;  // searched for after normalisation instead of before
  bool strip_left = false;  // takes the white space before it along
  bool strip_right = false;
  bool single_word = false;  // not where a letter, mark or digit touches it
};

// Immutable, thread-safe.
class AddedTokenFinder {
 public:
  // Looks for the patterns of `tokens`, none of which is empty; of two with the same the first.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // Appends the ids of the tokens in `text` (valid UTF-8) to `ids` and gives what lies between them
  // to `rest`, in order. From left to right, the longest at each place.
  Status find(std::string_view text, std::vector<std::int32_t>& ids, const PieceSink& rest) const;

 private:
  std::vector<AddedToken> tokens_;
  LiteralSet literals_;  // values are indices of tokens_
};

}  // namespace kvlane
