// A second, bounded place for sealed blocks that attention cannot read: host memory, as seen from
// the pool. What the pool evicts goes there, and comes back by name when it is wanted again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/memory_copy.h"
#include "cpu/memory.h"
#include "format/block_name.h"
#include "kvlane/status.h"

namespace kvlane {

// Keeps copies of blocks under their names; full, it forgets the one that was put or taken longest
// ago. Thread-compatible.
class BlockArena {
 public:
  // Room for as many blocks of `block_bytes` as fit into `bytes`, possibly none.
  // `copy` reaches where the blocks come from.
  static Result<BlockArena> create(std::size_t block_bytes, std::size_t bytes,
                                   MemoryCopy copy = copy_on_host);
  // The same in memory of the caller's, which outlives the arena: where devices copy fast.
  static BlockArena over(std::size_t block_bytes, std::span<std::byte> memory, MemoryCopy copy);

  int blocks_total() const { return blocks_total_; }
  int blocks_used() const { return static_cast<int>(places_.size()); }

  // Copies a block in, in place of the oldest where there is no other room; does nothing when it is
  // there already or there is no room for any. It is not there afterwards if the copy fails.
  void put(const BlockName& name, const std::byte* block);
  bool knows(const BlockName& name) const { return places_.contains(name); }
  // Copies a block out; it stays. False when it is not there or the copy fails.
  bool get(const BlockName& name, std::byte* block);

 private:
  struct Place {
    std::size_t slot;
    std::list<BlockName>::iterator age;
  };

  BlockArena(std::size_t block_bytes, std::span<std::byte> memory, MemoryCopy copy);

  std::size_t block_bytes_;
  int blocks_total_;
  PageBuffer own_memory_;  // empty over the caller's
  std::byte* memory_;
  MemoryCopy copy_;
  std::vector<std::size_t> free_slots_;
  std::list<BlockName> ages_;  // the oldest first
  std::unordered_map<BlockName, Place, BlockNameHash> places_;
};

}  // namespace kvlane
