// Runs the split rules one inside the other, without keeping lists of pieces.
// SPDX-License-Identifier: Apache-2.0
#include "model/pretokenizer.h"

namespace kvlane {

Status Pretokenizer::split(std::string_view text, const PieceSink& sink) const {
  return text.empty() ? Status() : split_from(0, text, sink);
}

Status Pretokenizer::split_from(std::size_t rule, std::string_view text,
                                const PieceSink& sink) const {
  std::string prefixed;
  if (options_.prefix_space && rule == options_.rules_before_prefix && !text.starts_with(' ')) {
    prefixed.reserve(text.size() + 1);
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  if (rule == options_.rules.size()) return sink(text);
  // The last rule, mostly the only one, needs no step in between.
  if (rule + 1 == options_.rules.size() && !options_.prefix_space) {
    return options_.rules[rule].split(text, sink);
  }
  return options_.rules[rule].split(
      text, [&](std::string_view piece) { return split_from(rule + 1, piece, sink); });
}

}  // namespace kvlane
