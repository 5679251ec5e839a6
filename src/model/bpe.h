// Byte-pair encoding of one word: the bytes or characters of a word become tokens by merging
// neighbours in the order that training fixed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/vocabulary.h"

namespace kvlane {

// Immutable, thread-safe.
class Bpe {
 public:
  // Two neighbours and the token that they become. The first merge of a list has the lowest rank;
  // of two merges of the same pair the later one counts, as in the `tokenizers` package.
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
  };
  enum class Unit { kByte, kCharacter };
  struct Options {
    // What merging begins with.
    Unit unit = Unit::kByte;
    // A word that is a token becomes that token, whatever the merges say ("ignore_merges").
    bool whole_words_first = false;
    // The rest is about characters without a token. First: each becomes the tokens "<0xE4>" of its
    // bytes, if the vocabulary has them all.
    bool byte_fallback = false;
    // Else it becomes this token; -1: nothing.
    std::int32_t unknown = -1;
    // Neighbours that became `unknown` are one token.
    bool fuse_unknown = false;
  };

  // `vocabulary` must outlive this and hold every id of `merges`. With Unit::kByte kUnsupported
  // unless it has a token for each of the 256 bytes: else some text could not be said.
  static Result<Bpe> create(const Vocabulary& vocabulary, const std::vector<Merge>& merges,
                            Options options);

  // Working memory of encode(), kept between words by the caller.
  class Scratch;

  // Appends the tokens of `word`, at most 2^31 bytes and, with Unit::kCharacter, valid UTF-8, to
  // `ids`. Time O(n log n), also for a whole text as one word, as sentencepiece's models have it.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Rule {
    std::uint32_t rank;
    std::int32_t merged;
  };
  struct Slot {
    std::uint64_t pair;
    Rule rule;
  };

  Bpe(const Vocabulary& vocabulary, Options options)
      : vocabulary_(&vocabulary), options_(options) {}
  Status find_byte_tokens();
  void index(const std::vector<Merge>& merges);
  std::size_t slot_of(std::uint64_t pair) const;
  // What the pair becomes; null when it does not merge.
  const Rule* find(std::int32_t left, std::int32_t right) const;
  void add_characters(std::string_view word, Scratch& scratch) const;
  // Adds the bytes of a character by their own tokens; false if one has none.
  bool add_byte_tokens(std::string_view character, Scratch& scratch) const;
  void add_candidate(std::uint32_t at, Scratch& scratch) const;
  void merge_all(Scratch& scratch) const;

  const Vocabulary* vocabulary_;
  Options options_;
  std::array<std::int32_t, 256> byte_ids_{};  // -1: none
  std::vector<Slot> slots_;  // hash table with linear probing, a power of two in size
};

class Bpe::Scratch {
 private:
  friend class Bpe;
  // A token of the word so far. Neighbours are linked, so that a merge moves nothing.
  struct Symbol {
    std::int32_t id;  // kMergedAway: part of the symbol before it
    std::uint32_t previous;
    std::uint32_t next;
  };
  // A pair that can merge, as it was when it was found.
  struct Candidate {
    std::uint64_t order;  // rank, then place: the lowest first
    std::int32_t merged;
  };
  void add(std::int32_t id);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace kvlane
