// Tokens back to text, as "decoder" of tokenizer.json says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/utf8.h"
#include "model/vocabulary.h"

namespace kvlane {

// What decoding does to tokens one by one, and to the beginning of a text.
struct DecoderOptions {
  struct Replacement {
    std::string from;  // not empty
    std::string to;
  };

  // In each token, one after another: "▁" becomes a space.
  std::vector<Replacement> replacements;
  // A token "<0xE4>" is that byte.
  bool byte_fallback = false;
  // Left out of the first token wherever it has it, instead of being replaced; empty: nothing.
  std::string dropped_in_first;
  // Spaces that are left out at the beginning of a text, where there are any.
  int spaces_stripped_max = 0;
};

// Immutable, thread-safe.
class Detokenizer {
 public:
  // How far a text has come.
  struct Progress {
    bool first = false;  // whether the next token is the first
    int spaces_stripped_max = 0;
  };

  // `vocabulary` must outlive this: tokens as they are spelt in the file, or, where the options
  // change nothing, bytes.
  static Result<Detokenizer> create(DecoderOptions options, const Vocabulary& vocabulary);

  // The bytes that a token stands for inside a text; empty for an unknown id.
  std::string_view bytes(std::int32_t id) const { return pieces().bytes(id); }
  // The token with these bytes among those that merging makes, -1 for none.
  std::int32_t find(std::string_view bytes) const { return pieces().find(bytes); }

  // The progress of a text without tokens yet.
  Progress start() const { return {true, options_.spaces_stripped_max}; }
  // Appends the bytes of the next token of a text.
  void append(std::int32_t id, Progress& progress, std::string& text) const;
  // What becomes one U+FFFD in bytes that are no text.
  InvalidUnit invalid_unit() const {
    return options_.byte_fallback ? InvalidUnit::kByte : InvalidUnit::kSequence;
  }

 private:
  Detokenizer(DecoderOptions options, const Vocabulary& vocabulary)
      : options_(std::move(options)), vocabulary_(&vocabulary) {}
  const Vocabulary& pieces() const { return decoded_ ? *decoded_ : *vocabulary_; }
  std::string decoded(std::string_view spelling, bool first) const;

  DecoderOptions options_;
  const Vocabulary* vocabulary_;
  std::optional<Vocabulary> decoded_;  // nullopt: the vocabulary has bytes already
};

}  // namespace kvlane
