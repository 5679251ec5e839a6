// A hash table that keeps ids only: the bytes it compares with lie in one string.
// SPDX-License-Identifier: Apache-2.0
#include "model/vocabulary.h"

#include <functional>

namespace kvlane {

Status Vocabulary::add(std::int32_t id, std::string_view bytes, bool findable) {
  if (id < 0 || id >= kTokenIdsMax) {
    return corrupt("token id " + std::to_string(id) + " is not below " +
                   std::to_string(kTokenIdsMax));
  }
  if (contains(id)) return corrupt("token id " + std::to_string(id) + " is given twice");
  if (bytes.size() >= kNowhere - bytes_.size()) return corrupt("the tokens have 4 GiB or more");
  if (id >= size()) places_.resize(static_cast<std::size_t>(id) + 1);
  places_[static_cast<std::size_t>(id)] = {static_cast<std::uint32_t>(bytes_.size()),
                                           static_cast<std::uint32_t>(bytes.size())};
  bytes_.append(bytes);
  if (!findable || find(bytes) >= 0) return {};
  if (2 * (findable_ + 1) > slots_.size()) grow_slots();
  slots_[slot_of(bytes)] = id;
  ++findable_;
  return {};
}

std::int32_t Vocabulary::find(std::string_view bytes) const {
  return slots_.empty() ? -1 : slots_[slot_of(bytes)];
}

// The slot that holds these bytes, or the free one where they belong.
std::size_t Vocabulary::slot_of(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>()(text) & mask;
  while (slots_[slot] >= 0 && bytes(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::grow_slots() {
  std::vector<std::int32_t> old(slots_.empty() ? 1024 : 2 * slots_.size(), -1);
  old.swap(slots_);
  for (const std::int32_t id : old) {
    if (id >= 0) slots_[slot_of(bytes(id))] = id;
  }
}

}  // namespace kvlane
