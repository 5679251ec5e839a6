// Every token is decoded once, when the tokenizer is made; what depends on its place, later.
// SPDX-License-Identifier: Apache-2.0
#include "model/detokenizer.h"

#include "model/byte_token.h"

namespace kvlane {
namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string replaced;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    replaced.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return replaced.append(text.substr(done));
}

}  // namespace

Result<Detokenizer> Detokenizer::create(DecoderOptions options, const Vocabulary& vocabulary) {
  Detokenizer detokenizer(std::move(options), vocabulary);
  if (detokenizer.options_.replacements.empty() && !detokenizer.options_.byte_fallback) {
    return detokenizer;
  }
  Vocabulary& decoded = detokenizer.decoded_.emplace();
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.contains(id)) continue;
    const std::string_view spelling = vocabulary.bytes(id);
    const bool findable = vocabulary.find(spelling) == id;
    KVLANE_TRY(decoded.add(id, detokenizer.decoded(spelling, false), findable));
  }
  return detokenizer;
}

std::string Detokenizer::decoded(std::string_view spelling, bool first) const {
  std::string text(spelling);
  if (first) text = replace_all(text, options_.dropped_in_first, "");
  for (const DecoderOptions::Replacement& replacement : options_.replacements) {
    text = replace_all(text, replacement.from, replacement.to);
  }
  if (options_.byte_fallback) {
    if (const std::optional<char> byte = byte_of_token(text)) return {*byte};
  }
  return text;
}

void Detokenizer::append(std::int32_t id, Progress& progress, std::string& text) const {
  if (!vocabulary_->contains(id)) return;
  std::string first;
  std::string_view piece = bytes(id);
  if (progress.first && !options_.dropped_in_first.empty()) {
    first = decoded(vocabulary_->bytes(id), true);
    piece = first;
  }
  progress.first = false;
  for (; progress.spaces_stripped_max > 0 && piece.starts_with(' ');
       --progress.spaces_stripped_max) {
    piece.remove_prefix(1);
  }
  if (!piece.empty()) progress.spaces_stripped_max = 0;
  text.append(piece);
}

}  // namespace kvlane
