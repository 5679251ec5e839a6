// Runs the steps one inside the other, without keeping lists of pieces.
// SPDX-License-Identifier: Apache-2.0
#include "model/pretokenizer.h"

#include <algorithm>

#include "model/byte_alphabet.h"

namespace kvlane {
namespace {

// `text` with marks instead of spaces, and one before it where the step wants that.
std::string marked(const Pretokenizer::Metaspace& step, std::string_view text, bool first) {
  std::string marked;
  marked.reserve(text.size() + step.mark.size());
  const bool prepend = step.prepend == Pretokenizer::Metaspace::Prepend::kAlways ||
                       (step.prepend == Pretokenizer::Metaspace::Prepend::kFirst && first);
  if (prepend && !text.starts_with(' ') && !text.starts_with(step.mark)) marked = step.mark;
  for (const char c : text) {
    if (c == ' ') {
      marked += step.mark;
    } else {
      marked += c;
    }
  }
  return marked;
}

Status split_before(std::string_view mark, std::string_view text, const PieceSink& sink) {
  while (!text.empty()) {
    const std::size_t next = std::min(text.find(mark, 1), text.size());
    KVLANE_TRY(sink(text.substr(0, next)));
    text.remove_prefix(next);
  }
  return {};
}

}  // namespace

Pretokenizer::Pretokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

Status Pretokenizer::split(std::string_view text, bool first, const PieceSink& sink) const {
  if (text.empty()) return {};
  const bool spelt = std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return std::holds_alternative<ByteAlphabet>(step);
  });
  if (!spelt) return split_from(0, text, first, sink);
  return split_from(0, text, first, [&](std::string_view piece) {
    const std::optional<std::string> bytes = bytes_of_byte_level(piece);
    return bytes ? sink(*bytes) : internal_error("a pre-tokenizer left the byte alphabet");
  });
}

Status Pretokenizer::split_from(std::size_t index, std::string_view text, bool first,
                                const PieceSink& sink) const {
  if (index == steps_.size()) return sink(text);
  const Step& step = steps_[index];
  const PieceSink rest = [&](std::string_view piece) {
    const bool piece_first = first && piece.data() == text.data();
    return split_from(index + 1, piece, piece_first, sink);
  };
  if (const auto* split = std::get_if<Split>(&step)) {
    // The last step, mostly the only one, needs nothing in between.
    const PieceSink& next = index + 1 == steps_.size() ? sink : rest;
    return split_by(split->rule, split->behavior, split->invert, text, next);
  }
  if (std::holds_alternative<PrefixSpace>(step)) {
    if (text.starts_with(' ')) return rest(text);
    return split_from(index + 1, " " + std::string(text), first, sink);
  }
  if (std::holds_alternative<ByteAlphabet>(step)) {
    return split_from(index + 1, byte_level_of_bytes(text), first, sink);
  }
  const auto& metaspace = std::get<Metaspace>(step);
  const std::string changed = marked(metaspace, text, first);
  if (!metaspace.split) return split_from(index + 1, changed, first, sink);
  return split_before(metaspace.mark, changed, [&](std::string_view piece) {
    return split_from(index + 1, piece, first && piece.data() == changed.data(), sink);
  });
}

}  // namespace kvlane
