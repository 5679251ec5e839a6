// Merging with a heap of candidate pairs over a linked list of symbols.
// SPDX-License-Identifier: Apache-2.0
#include "model/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>

#include "model/byte_token.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

constexpr std::uint64_t kFree = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kNoSymbol = std::numeric_limits<std::uint32_t>::max();
constexpr std::int32_t kMergedAway = -1;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// For std::push_heap and its kin, which keep the greatest on top.
constexpr auto kLater = [](const auto& a, const auto& b) { return a.order > b.order; };

}  // namespace

Result<Bpe> Bpe::create(const Vocabulary& vocabulary, const std::vector<Merge>& merges,
                        Options options) {
  Bpe bpe(vocabulary, options);
  KVLANE_TRY(bpe.find_byte_tokens());
  bpe.index(merges);
  return bpe;
}

Status Bpe::find_byte_tokens() {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto c = static_cast<char>(byte);
    byte_ids_[byte] =
        vocabulary_->find(options_.unit == Unit::kByte ? std::string(1, c) : byte_token_name(c));
    if (options_.unit == Unit::kByte && byte_ids_[byte] < 0) {
      return unsupported("the vocabulary has no token for the byte " + std::to_string(byte) +
                         ", so it is not byte-level");
    }
  }
  return {};
}

void Bpe::index(const std::vector<Merge>& merges) {
  slots_.assign(std::bit_ceil(2 * merges.size() + 2), Slot{kFree, {0, 0}});
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const std::uint64_t pair = pair_key(merge.left, merge.right);
    slots_[slot_of(pair)] = {pair, {static_cast<std::uint32_t>(rank), merge.merged}};
  }
}

// The slot that holds the pair, or the free one where it belongs.
std::size_t Bpe::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  // Fibonacci hashing: the high bits of the product depend on all bits of the pair.
  std::size_t slot = (pair * 0x9E3779B97F4A7C15U >> 20) & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kFree) slot = (slot + 1) & mask;
  return slot;
}

const Bpe::Rule* Bpe::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.pair == kFree ? nullptr : &slot.rule;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (options_.whole_words_first) {
    if (const std::int32_t id = vocabulary_->find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  scratch.symbols_.clear();
  if (options_.unit == Unit::kByte) {
    for (const char byte : word) scratch.add(byte_ids_[static_cast<unsigned char>(byte)]);
  } else {
    add_characters(word, scratch);
  }
  if (scratch.symbols_.empty()) return;
  scratch.symbols_.back().next = kNoSymbol;
  merge_all(scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols_) {
    if (symbol.id != kMergedAway) ids.push_back(symbol.id);
  }
}

void Bpe::Scratch::add(std::int32_t id) {
  const auto at = static_cast<std::uint32_t>(symbols_.size());
  symbols_.push_back({id, at == 0 ? kNoSymbol : at - 1, at + 1});
}

// Unknown characters wait for the next known one, as in the package: so they come after the byte
// tokens of a character between them.
void Bpe::add_characters(std::string_view word, Scratch& scratch) const {
  std::size_t unknown = 0;
  const auto add_unknown = [&] {
    for (; unknown > 0; --unknown) scratch.add(options_.unknown);
  };
  while (!word.empty()) {
    const std::string_view character = word.substr(0, next_utf8(word).bytes);
    word.remove_prefix(character.size());
    if (const std::int32_t id = vocabulary_->find(character); id >= 0) {
      add_unknown();
      scratch.add(id);
      continue;
    }
    if (options_.byte_fallback && add_byte_tokens(character, scratch)) continue;
    if (options_.unknown < 0) continue;
    if (!options_.fuse_unknown) add_unknown();
    unknown = 1;
  }
  add_unknown();
}

bool Bpe::add_byte_tokens(std::string_view character, Scratch& scratch) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char b) { return id_of(b) >= 0; })) {
    return false;
  }
  for (const char byte : character) scratch.add(id_of(byte));
  return true;
}

void Bpe::add_candidate(std::uint32_t at, Scratch& scratch) const {
  const Scratch::Symbol& symbol = scratch.symbols_[at];
  if (symbol.next == kNoSymbol) return;
  if (const Rule* rule = find(symbol.id, scratch.symbols_[symbol.next].id)) {
    scratch.heap_.push_back({std::uint64_t{rule->rank} << 32 | at, rule->merged});
  }
}

void Bpe::merge_all(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  std::vector<Scratch::Candidate>& heap = scratch.heap_;
  heap.clear();
  for (std::uint32_t at = 0; at < symbols.size(); ++at) add_candidate(at, scratch);
  std::make_heap(heap.begin(), heap.end(), kLater);
  const auto add = [&](std::uint32_t at) {
    const std::size_t before = heap.size();
    add_candidate(at, scratch);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), kLater);
  };

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(top.order);
    Scratch::Symbol& left = symbols[at];
    if (left.id == kMergedAway || left.next == kNoSymbol) continue;
    // The symbols may have grown since. Ids are unique, so the same result means the same pair.
    Scratch::Symbol& right = symbols[left.next];
    const Rule* rule = find(left.id, right.id);
    if (rule == nullptr || rule->merged != top.merged) continue;

    left.id = top.merged;
    left.next = right.next;
    right.id = kMergedAway;
    if (left.next != kNoSymbol) symbols[left.next].previous = at;
    if (left.previous != kNoSymbol) add(left.previous);
    add(at);
  }
}

}  // namespace kvlane
