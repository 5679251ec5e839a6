// What becomes of the matches of a split rule: pieces of their own, parts of others, or nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "kvlane/status.h"
#include "model/split_rule.h"

namespace kvlane {

// As "behavior" in tokenizer.json.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,  // a match ends the piece before it, unless that one is a match as well
  kMergedWithNext,      // a match begins the piece after it, unless that one is a match as well
  kContiguous,          // matches side by side are one piece
};

// The behavior with this name in tokenizer.json; nullopt for another name.
std::optional<SplitBehavior> find_split_behavior(std::string_view name);

// Cuts `text` (valid UTF-8) by `rule` and gives the pieces to `sink`. With `invert` the matches are
// what lies between those of the rule. Errors are those of SplitRule::scan and of `sink`.
Status split_by(const SplitRule& rule, SplitBehavior behavior, bool invert, std::string_view text,
                const PieceSink& sink);

}  // namespace kvlane
