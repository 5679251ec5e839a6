// The memory of the KV cache: a fixed pool of blocks, handed out, counted, shared by name.
//
// A block holds 64 consecutive tokens of one sequence over all layers; its memory is
// [layers][kv_heads] pages, a page K[64][head_dim] then V[64][head_dim] in 16 bits
// (format/shape.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/memory_copy.h"
#include "cpu/memory.h"
#include "format/block_name.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

using BlockId = std::int32_t;

// open: rows are being appended. full: all 64 rows are there, in 16 bits. sealed: encoded in the
// cache's format, never changes again. Formats of 16 bits seal without touching the rows.
enum class BlockState : std::uint8_t { kFree, kOpen, kFull, kSealed };

// A sealed block may be published under its name; then it can be found and shared. When its last
// owner goes it stays as long as nobody needs the memory: the blocks that nobody owned for longest
// are evicted first.
//
// Thread-compatible: used by the engine's thread alone, except that slab() and page() may be called
// from any thread for a block that has an owner. All block memory is taken by create().
class BlockPool {
 public:
  // As many blocks as fit into `bytes`; kInvalidArgument when not even one does.
  static Result<BlockPool> create(const KvShape& shape, std::size_t bytes);

  // The same over memory of a device, which outlives the pool: the pool itself never looks at it.
  static Result<BlockPool> over(const KvShape& shape, std::span<std::byte> memory, MemoryCopy copy);

  // Whether blocks lie where a CPU may touch them.
  bool on_host() const { return own_memory_.data() != nullptr; }

  const KvShape& shape() const { return shape_; }
  int blocks_total() const { return static_cast<int>(blocks_.size()); }
  // Without an owner: to be had by allocate(), those that are cached included.
  int blocks_free() const { return static_cast<int>(free_.size()) + cached_; }
  int blocks_cached() const { return cached_; }

  // An open block with one owner; a cached block is evicted if there is no other. kExhausted when
  // all have owners.
  Result<BlockId> allocate();
  // One more owner, or one less.
  void retain(BlockId id);
  void release(BlockId id);

  BlockState state(BlockId id) const { return blocks_[id].state; }
  // open -> full -> sealed, one step at a time.
  void set_state(BlockId id, BlockState next);

  // Makes a sealed block known under a name. False, and nothing happens, when another block has
  // that name already.
  bool publish(BlockId id, const BlockName& name);
  // The block of that name, with one more owner.
  std::optional<BlockId> find(const BlockName& name);
  // Whether find() would find it.
  bool knows(const BlockName& name) const { return names_.contains(name); }
  // Called with each block that is evicted while its rows are still there.
  using OnEvict = std::function<void(BlockId id, const BlockName& name)>;
  void set_on_evict(OnEvict on_evict) { on_evict_ = std::move(on_evict); }

  // All slabs of a block: shape().block_bytes().
  std::byte* block(BlockId id) const;
  // [kv_heads] pages of this layer. Writing is allowed while the block is open.
  std::uint16_t* slab(BlockId id, int layer) const;
  // All rows of a block, for an open block `to`. An error is the device's.
  Status copy_block(BlockId to, BlockId from) {
    return copy_(block(to), block(from), shape_.block_bytes());
  }
  // K rows [64][head_dim] of one page; its V rows follow at page_plane_elements().
  std::uint16_t* page(BlockId id, int layer, int kv_head) const;

 private:
  static constexpr BlockId kNone = -1;
  struct Block {
    BlockState state = BlockState::kFree;
    std::int32_t owners = 0;
    std::optional<BlockName> name;
    BlockId older = kNone;  // neighbours in the list of cached blocks
    BlockId newer = kNone;
  };

  BlockPool(const KvShape& shape, std::byte* memory, int blocks, MemoryCopy copy);
  void enter_cached(BlockId id);
  void leave_cached(BlockId id);
  void evict_oldest();

  KvShape shape_;
  PageBuffer own_memory_;  // empty over that of a device
  std::byte* memory_;
  MemoryCopy copy_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block used last is the warmest
  std::unordered_map<BlockName, BlockId, BlockNameHash> names_;
  BlockId oldest_ = kNone;  // the list of cached blocks: published, and without an owner
  BlockId newest_ = kNone;
  int cached_ = 0;
  OnEvict on_evict_;
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
  // Appends a sealed block of which this table becomes an owner in the caller's place. Only when
  // all blocks so far are complete.
  void append_sealed(BlockId id);
  // Puts a sealed block, of which this table becomes an owner in the caller's place, where the next
  // token would have been written: in place of a block that has no row yet.
  void adopt_next(BlockId id);
  // Fills an empty table with the sequence of `other`: complete blocks are shared, the open one is
  // copied. All of it or nothing (kExhausted).
  Status fork(const BlockTable& other);
  // Makes complete blocks known: block i under names[i], from `first` on.
  void publish(std::span<const BlockName> names, int first);
  // Gives all blocks back. The last is the first to be evicted: without those before it, it is of
  // no use to anybody.
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
