// The memory of the KV cache: a fixed pool of blocks, handed out and counted.
//
// A block holds 64 consecutive tokens of one sequence over all layers; its memory is
// [layers][kv_heads] pages, a page K[64][head_dim] then V[64][head_dim] in 16 bits
// (format/shape.h). SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/memory.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

using BlockId = std::int32_t;

// open: rows are being appended. full: all 64 rows are there, in 16 bits. sealed: encoded in the
// cache's format, never changes again. Formats of 16 bits seal without touching the rows.
enum class BlockState : std::uint8_t { kFree, kOpen, kFull, kSealed };

// Thread-compatible: used by the engine's thread alone. All memory is taken by create(); allocate()
// and release() touch no allocator.
class BlockPool {
 public:
  // As many blocks as fit into `bytes`; kInvalidArgument when not even one does.
  static Result<BlockPool> create(const KvShape& shape, std::size_t bytes);

  const KvShape& shape() const { return shape_; }
  int blocks_total() const { return static_cast<int>(blocks_.size()); }
  int blocks_free() const { return static_cast<int>(free_.size()); }

  // An open block with one owner. kExhausted when none is free.
  Result<BlockId> allocate();
  // One more owner, or one less; the last one to go frees the block.
  void retain(BlockId id);
  void release(BlockId id);

  BlockState state(BlockId id) const { return blocks_[id].state; }
  // open -> full -> sealed, one step at a time.
  void set_state(BlockId id, BlockState next);

  // [kv_heads] pages of this layer. Writing is allowed while the block is open.
  std::uint16_t* slab(BlockId id, int layer) const;
  // K rows [64][head_dim] of one page; its V rows follow at page_plane_elements().
  std::uint16_t* page(BlockId id, int layer, int kv_head) const;

 private:
  struct Block {
    BlockState state = BlockState::kFree;
    std::int32_t owners = 0;
  };

  BlockPool(const KvShape& shape, PageBuffer memory, int blocks);

  KvShape shape_;
  PageBuffer memory_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block used last is the warmest
};

// The blocks of one sequence, in order of position. The table owns one reference to each.
class BlockTable {
 public:
  // Neither allocates nor frees blocks by itself: see grow() and clear().
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable() { clear(); }

  // Takes blocks until `tokens` tokens fit: all of them or none (kExhausted).
  Status grow(int tokens);
  // Says that rows up to `tokens` are written; blocks that are complete become full and, as formats
  // of 16 bits need no window, sealed.
  void set_tokens(int tokens);
  // Gives all blocks back.
  void clear();

  int tokens() const { return tokens_; }
  int blocks() const { return static_cast<int>(ids_.size()); }
  BlockId id(int index) const { return ids_[index]; }
  BlockPool& pool() const { return *pool_; }

 private:
  BlockPool* pool_;
  std::vector<BlockId> ids_;
  int tokens_ = 0;
};

}  // namespace kvlane
