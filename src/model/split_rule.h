// A split rule of a tokenizer: a compiled regular expression that cuts text into matches and gaps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// Gets one piece of text after another, in order, never an empty one. An error ends the splitting.
using PieceSink = std::function<Status(std::string_view)>;

// The same with whether the piece is a match or lies between matches.
using SpanSink = std::function<Status(std::string_view, bool is_match)>;

// Immutable, thread-safe. Movable.
class SplitRule {
 public:
  // `pattern` is what tokenizer.json holds; kUnsupported names what kvlane does not do. Patterns
  // that match the empty string are refused.
  static Result<SplitRule> compile(std::string_view pattern);
  // A rule that matches this text and nothing else; it must not be empty.
  static Result<SplitRule> of_literal(std::string_view text);

  SplitRule(SplitRule&&) noexcept;
  SplitRule& operator=(SplitRule&&) noexcept;
  ~SplitRule();

  // Gives each match and what lies between them to `sink`: they lie side by side and are all of
  // `text`, which must be valid UTF-8. kExhausted when a match takes absurdly many steps.
  Status scan(std::string_view text, const SpanSink& sink) const;
  // The same without saying which is which ("Isolated" in tokenizer.json).
  Status split(std::string_view text, const PieceSink& sink) const;

 private:
  struct Impl;
  explicit SplitRule(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace kvlane
