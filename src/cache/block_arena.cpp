// Slots of fixed memory, names, and who was wanted last.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_arena.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvlane {

Result<BlockArena> BlockArena::create(std::size_t block_bytes, std::size_t bytes, MemoryCopy copy) {
  const std::size_t blocks =
      std::min<std::size_t>(bytes / block_bytes, std::numeric_limits<std::int32_t>::max());
  PageBuffer memory;
  if (blocks > 0) {
    KVLANE_ASSIGN(memory, PageBuffer::allocate(blocks * block_bytes));
  }
  return BlockArena(block_bytes, static_cast<int>(blocks), std::move(memory), std::move(copy));
}

BlockArena::BlockArena(std::size_t block_bytes, int blocks, PageBuffer memory, MemoryCopy copy)
    : block_bytes_(block_bytes),
      blocks_total_(blocks),
      memory_(std::move(memory)),
      copy_(std::move(copy)) {
  free_slots_.reserve(blocks);
  for (int slot = blocks - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void BlockArena::put(const BlockName& name, const std::byte* block) {
  if (blocks_total_ == 0) return;
  if (const auto known = places_.find(name); known != places_.end()) {
    ages_.splice(ages_.end(), ages_, known->second.age);
    return;
  }
  if (free_slots_.empty()) {
    const auto oldest = places_.find(ages_.front());
    free_slots_.push_back(oldest->second.slot);
    places_.erase(oldest);
    ages_.pop_front();
  }
  const std::size_t slot = free_slots_.back();
  if (!copy_(memory_.data() + slot * block_bytes_, block, block_bytes_).ok()) return;
  free_slots_.pop_back();
  places_.emplace(name, Place{slot, ages_.insert(ages_.end(), name)});
}

bool BlockArena::get(const BlockName& name, std::byte* block) {
  const auto found = places_.find(name);
  if (found == places_.end()) return false;
  ages_.splice(ages_.end(), ages_, found->second.age);
  return copy_(block, memory_.data() + found->second.slot * block_bytes_, block_bytes_).ok();
}

}  // namespace kvlane
