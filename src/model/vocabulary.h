// The tokens of a model: bytes by id, and ids by bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// One more than the largest token id taken. Known vocabularies are below 300,000; each id costs
// memory whether or not a token has it.
inline constexpr std::int32_t kTokenIdsMax = 1 << 20;

// Immutable once filled, then thread-safe.
class Vocabulary {
 public:
  // Gives `id` to a token with these bytes. kCorrupt when the id is negative, kTokenIdsMax or more,
  // or has a token already. A token that is not `findable` is there for bytes() only.
  Status add(std::int32_t id, std::string_view bytes, bool findable);

  // One more than the largest id.
  std::int32_t size() const { return static_cast<std::int32_t>(places_.size()); }
  bool contains(std::int32_t id) const {
    return id >= 0 && id < size() && places_[static_cast<std::size_t>(id)].offset != kNowhere;
  }
  // Empty for an unknown id. Valid until the next add().
  std::string_view bytes(std::int32_t id) const {
    if (!contains(id)) return {};
    const Place& place = places_[static_cast<std::size_t>(id)];
    return std::string_view(bytes_).substr(place.offset, place.bytes);
  }
  // The findable token with these bytes, the one added first if several have them; -1 for none.
  std::int32_t find(std::string_view bytes) const;

 private:
  static constexpr std::uint32_t kNowhere = ~0U;
  struct Place {
    std::uint32_t offset = kNowhere;
    std::uint32_t bytes = 0;
  };

  std::size_t slot_of(std::string_view bytes) const;
  void grow_slots();

  std::string bytes_;          // of all tokens, one after another
  std::vector<Place> places_;  // [id]
  // A hash table with linear probing over ids, a power of two in size and at most half full; -1:
  // free.
  std::vector<std::int32_t> slots_;
  std::size_t findable_ = 0;
};

}  // namespace kvlane
