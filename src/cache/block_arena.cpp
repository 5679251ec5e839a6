// Slots of fixed memory, names, and who was wanted last.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_arena.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvlane {

Result<BlockArena> BlockArena::create(std::size_t block_bytes, std::size_t bytes, MemoryCopy copy) {
  PageBuffer memory;
  if (bytes >= block_bytes) {
    KVLANE_ASSIGN(memory, PageBuffer::allocate(bytes / block_bytes * block_bytes));
  }
  BlockArena arena(block_bytes, {memory.data(), bytes / block_bytes * block_bytes},
                   std::move(copy));
  arena.own_memory_ = std::move(memory);
  return arena;
}

BlockArena BlockArena::over(std::size_t block_bytes, std::span<std::byte> memory, MemoryCopy copy) {
  return {block_bytes, memory, std::move(copy)};
}

BlockArena::BlockArena(std::size_t block_bytes, std::span<std::byte> memory, MemoryCopy copy)
    : block_bytes_(block_bytes),
      blocks_total_(static_cast<int>(std::min<std::size_t>(
          memory.size() / block_bytes, std::numeric_limits<std::int32_t>::max()))),
      memory_(memory.data()),
      copy_(std::move(copy)) {
  free_slots_.reserve(blocks_total_);
  for (int slot = blocks_total_ - 1; slot >= 0; --slot) free_slots_.push_back(slot);
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
  if (!copy_(memory_ + slot * block_bytes_, block, block_bytes_).ok()) return;
  free_slots_.pop_back();
  places_.emplace(name, Place{slot, ages_.insert(ages_.end(), name)});
}

bool BlockArena::get(const BlockName& name, std::byte* block) {
  const auto found = places_.find(name);
  if (found == places_.end()) return false;
  ages_.splice(ages_.end(), ages_, found->second.age);
  return copy_(block, memory_ + found->second.slot * block_bytes_, block_bytes_).ok();
}

}  // namespace kvlane
