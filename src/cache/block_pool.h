// The memory of the KV cache: a fixed pool of blocks, handed out, counted, shared by name.
//
// A block holds 64 consecutive tokens of one sequence over all layers. Its memory is [layers]
// slabs: of rows, [kv_heads] pages K[64][head_dim] then V[64][head_dim] in 16 bits
// (format/shape.h), or of whatever a coded format makes of them. A cache in 16 bits has one pool;
// one in a coded format has a pool of sealed blocks, which are shared and named, and a small one of
// rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/memory_copy.h"
#include "cpu/memory.h"
#include "format/block_name.h"
#include "format/kv_window.h"
#include "format/shape.h"
#include "format/slab_sizes.h"
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
  // As many blocks of rows as fit into `bytes`; kInvalidArgument when not even one does.
  static Result<BlockPool> create(const KvShape& shape, std::size_t bytes);

  // The same for sealed blocks of a coded format, whose slabs are as large as `sizes` says.
  static Result<BlockPool> create_sealed(const KvShape& shape, const SlabSizes& sizes,
                                         std::size_t bytes);

  // Of layers `first` on: what slabs here are called by. 0 without this.
  void set_first_layer(int first) { first_layer_ = first; }

  // The same over memory of a device, which outlives the pool: the pool itself never looks at it.
  static Result<BlockPool> over(const KvShape& shape, std::span<std::byte> memory, MemoryCopy copy);
  // Likewise create_sealed().
  static Result<BlockPool> over_sealed(const KvShape& shape, const SlabSizes& sizes,
                                       std::span<std::byte> memory, MemoryCopy copy);

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

  const SlabSizes& slab_sizes() const { return sizes_; }
  std::size_t slab_bytes(int layer) const { return sizes_.bytes(layer - first_layer_); }
  std::size_t block_bytes() const { return sizes_.block_bytes(); }
  // All slabs of a block.
  std::byte* block(BlockId id) const { return memory_ + id * block_bytes(); }
  // One layer of a block. Writing is allowed while the block is open.
  std::byte* slab_memory(BlockId id, int layer) const;
  // All slabs of a block, for an open block `to`. An error is the device's.
  Status copy_block(BlockId to, BlockId from) {
    return copy_(block(to), block(from), block_bytes());
  }

  // In a pool of rows: [kv_heads] pages of this layer.
  std::uint16_t* slab(BlockId id, int layer) const {
    return reinterpret_cast<std::uint16_t*>(slab_memory(id, layer));
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

  BlockPool(const KvShape& shape, const SlabSizes& sizes, std::byte* memory, int blocks,
            MemoryCopy copy);
  void enter_cached(BlockId id);
  void leave_cached(BlockId id);
  void evict_oldest();

  KvShape shape_;
  SlabSizes sizes_;
  int first_layer_ = 0;
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
//
// In a coded cache a block has up to two memories: rows, while it is open or attention may still
// read it as rows, and its sealed slabs. The window says when rows go.
//
// Where a token sees no further back than so many tokens (limit_sight()), the first blocks of a
// long sequence may be gone: they have their places in the table, but no memory.
class BlockTable {
 public:
  // Of a cache in 16 bits. Neither allocates nor frees blocks by itself: see grow() and clear().
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  // Of a coded cache.
  BlockTable(BlockPool& sealed, BlockPool& rows, KvWindow window)
      : pool_(&sealed), rows_pool_(&rows), window_(window) {}
  // What a table of another process has, over pools that have the blocks of the same numbers: to
  // write and read rows and slabs. Nobody here owns these blocks; they cannot grow or be shared.
  struct Lent {
    std::vector<BlockId> ids;
    std::vector<BlockId> rows;  // in a coded cache one for each block
    int tokens = 0;
    int sight = 0;
    int gone = 0;
  };
  static BlockTable lent(BlockTable empty, Lent what);

  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable() { clear(); }

  // From now on a token sees `tokens` tokens, its own included; 0: all, as in a new table.
  void limit_sight(int tokens) { sight_ = tokens; }
  // The first block that any token behind the first `tokens` ones sees.
  int first_seen(int tokens) const {
    return sight_ == 0 ? 0 : std::max(0, tokens - sight_ + 1) / kBlockTokens;
  }
  // Gives blocks back that no token which is still to be written sees.
  void drop_unseen() { drop(first_seen(tokens_)); }
  // Goes on behind block `first` - 1 as if all before had been written and dropped. Only when all
  // blocks so far are complete.
  void skip_to(int first);
  // Blocks at the beginning that are gone.
  int gone() const { return gone_; }

  // Takes blocks until `tokens` tokens fit: all of them or none (kExhausted).
  Status grow(int tokens);
  // Takes rows for the tokens from tokens() up to `tokens`, for which there are blocks: all of them
  // or none (kExhausted). In a cache in 16 bits they are there with the blocks.
  Status open_rows(int tokens);
  // The same for an empty table into which a sequence of `tokens` tokens will be written from
  // elsewhere: rows of the blocks that arrives_as_rows() names.
  Status open_arriving_rows(int tokens);
  // Whether block `index` of a sequence of `tokens` tokens comes and goes as rows: the open one,
  // and in a coded cache those of the window; all of a cache in 16 bits. The others do as sealed
  // slabs.
  bool arrives_as_rows(int index, int tokens) const {
    return !coded() || window_.reads_rows(index, tokens / kBlockTokens);
  }
  // Most tokens that could be written next: those that have blocks and have rows or could get them.
  int tokens_with_rows() const;
  // Says that rows up to `tokens` are written, and the slabs of complete blocks in a coded cache
  // (with open_arriving_rows(): all that is to arrive);
  // blocks that are complete become full and sealed, and rows outside the window go.
  void set_tokens(int tokens);
  // Appends a sealed block of which this table becomes an owner in the caller's place. Only when
  // all blocks so far are complete, and in a coded cache without a window.
  void append_sealed(BlockId id);
  // Puts a sealed block, of which this table becomes an owner in the caller's place, where the next
  // token would have been written: in place of a block that has no row yet, or behind the last.
  // As append_sealed().
  void adopt_next(BlockId id);
  // Fills an empty table with the sequence of `other`: complete blocks are shared, the open one is
  // copied, what is gone there is gone here. All of it or nothing (kExhausted).
  Status fork(const BlockTable& other);
  // Makes complete blocks known: block i under names[i], from `first` on, those that are not gone.
  void publish(std::span<const BlockName> names, int first);
  // Gives all blocks back. The last is the first to be evicted: without those before it, it is of
  // no use to anybody.
  void clear();

  int tokens() const { return tokens_; }
  int sight() const { return sight_; }                          // 0: all
  int blocks() const { return static_cast<int>(ids_.size()); }  // those that are gone included
  BlockId id(int index) const { return ids_[index]; }           // negative where it is gone
  BlockPool& pool() const { return *pool_; }
  bool coded() const { return rows_pool_ != nullptr; }
  // Where rows are, and which block of that has those of block `index`: negative where it has none.
  BlockPool& rows_pool() const { return coded() ? *rows_pool_ : *pool_; }
  BlockId rows_id(int index) const { return coded() ? rows_[index] : ids_[index]; }

  // Rows of block `index`, which has them: [kv_heads] pages of this layer, and one page.
  std::uint16_t* rows(int index, int layer) const;
  std::uint16_t* page(int index, int layer, int kv_head) const;
  // The sealed slab of block `index` in a coded cache; to be written while the block is not sealed.
  std::byte* sealed(int index, int layer) const { return pool_->slab_memory(ids_[index], layer); }

 private:
  static constexpr BlockId kNone = -1;
  Status take_rows(std::span<const int> blocks);
  void release_rows(int index);
  void drop(int end);
  void share(const BlockTable& other, int complete);

  BlockPool* pool_;  // of all blocks
  std::vector<BlockId> ids_;
  BlockPool* rows_pool_ = nullptr;  // null in a cache in 16 bits
  std::vector<BlockId> rows_;       // in a coded cache one for each block, kNone without rows
  KvWindow window_;
  int tokens_ = 0;
  int sight_ = 0;  // tokens
  int gone_ = 0;   // blocks; kNone in ids_ and rows_
  bool lent_ = false;
};

}  // namespace kvlane
