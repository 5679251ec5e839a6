// Spans lie side by side in the text, so merging two is making the first longer; one is held back.
// SPDX-License-Identifier: Apache-2.0
#include "model/split_behavior.h"

#include <array>
#include <utility>

namespace kvlane {
namespace {

constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
}};

// Whether a span continues the one before it.
bool joins(SplitBehavior behavior, bool before_is_match, bool is_match) {
  switch (behavior) {
    case SplitBehavior::kContiguous: return before_is_match == is_match;
    case SplitBehavior::kMergedWithPrevious: return !before_is_match && is_match;
    case SplitBehavior::kMergedWithNext: return before_is_match && !is_match;
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved: break;
  }
  return false;
}

}  // namespace

std::optional<SplitBehavior> find_split_behavior(std::string_view name) {
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  return std::nullopt;
}

Status split_by(const SplitRule& rule, SplitBehavior behavior, bool invert, std::string_view text,
                const PieceSink& sink) {
  if (behavior == SplitBehavior::kIsolated) return rule.split(text, sink);
  std::string_view held;
  bool held_is_match = false;  // the last span in it
  const auto take = [&](std::string_view span, bool is_match_of_rule) -> Status {
    const bool is_match = is_match_of_rule != invert;
    if (is_match && behavior == SplitBehavior::kRemoved) return {};
    if (!held.empty() && joins(behavior, held_is_match, is_match)) {
      held = {held.data(), held.size() + span.size()};
    } else {
      if (!held.empty()) KVLANE_TRY(sink(held));
      held = span;
    }
    held_is_match = is_match;
    return {};
  };
  KVLANE_TRY(rule.scan(text, take));
  return held.empty() ? Status() : sink(held);
}

}  // namespace kvlane
