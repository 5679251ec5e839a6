// Blocks and their owners.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_pool.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace kvlane {

namespace {

// That fit into `bytes`.
Result<int> blocks_in(std::size_t block_bytes, std::size_t bytes) {
  const std::size_t fitting = bytes / block_bytes;
  if (fitting == 0) {
    return invalid_argument("a KV memory of " + std::to_string(bytes) +
                            " bytes holds no block; one block of this model has " +
                            std::to_string(block_bytes) + " bytes");
  }
  return static_cast<int>(std::min<std::size_t>(fitting, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace

Result<BlockPool> BlockPool::create(const KvShape& shape, std::size_t bytes) {
  return create_sealed(shape, {shape.layers, shape.slab_bytes()}, bytes);
}

Result<BlockPool> BlockPool::create_sealed(const KvShape& shape, const SlabSizes& sizes,
                                           std::size_t bytes) {
  KVLANE_ASSIGN(const int blocks, blocks_in(sizes.block_bytes(), bytes));
  KVLANE_ASSIGN(PageBuffer memory, PageBuffer::allocate(blocks * sizes.block_bytes()));
  BlockPool pool(shape, sizes, memory.data(), blocks, copy_on_host);
  pool.own_memory_ = std::move(memory);
  return pool;
}

Result<BlockPool> BlockPool::over(const KvShape& shape, std::span<std::byte> memory,
                                  MemoryCopy copy) {
  return over_sealed(shape, {shape.layers, shape.slab_bytes()}, memory, std::move(copy));
}

Result<BlockPool> BlockPool::over_sealed(const KvShape& shape, const SlabSizes& sizes,
                                         std::span<std::byte> memory, MemoryCopy copy) {
  KVLANE_ASSIGN(const int blocks, blocks_in(sizes.block_bytes(), memory.size()));
  return BlockPool(shape, sizes, memory.data(), blocks, std::move(copy));
}

BlockPool::BlockPool(const KvShape& shape, const SlabSizes& sizes, std::byte* memory, int blocks,
                     MemoryCopy copy)
    : shape_(shape),
      sizes_(sizes),
      memory_(memory),
      copy_(std::move(copy)),
      blocks_(blocks),
      free_(blocks) {
  // Top of the stack is block 0, so that a small load touches the front of the pool only.
  for (int i = 0; i < blocks; ++i) free_[i] = blocks - 1 - i;
}

Result<BlockId> BlockPool::allocate() {
  if (free_.empty() && cached_ > 0) evict_oldest();
  if (free_.empty()) {
    return exhausted("all " + std::to_string(blocks_total()) + " KV blocks are in use");
  }
  const BlockId id = free_.back();
  free_.pop_back();
  blocks_[id].state = BlockState::kOpen;
  blocks_[id].owners = 1;
  return id;
}

void BlockPool::retain(BlockId id) {
  assert(blocks_[id].owners > 0);
  ++blocks_[id].owners;
}

void BlockPool::release(BlockId id) {
  Block& block = blocks_[id];
  assert(block.owners > 0);
  if (--block.owners > 0) return;
  if (block.name) {
    enter_cached(id);
    return;
  }
  block.state = BlockState::kFree;
  free_.push_back(id);
}

bool BlockPool::publish(BlockId id, const BlockName& name) {
  Block& block = blocks_[id];
  assert(block.owners > 0 && block.state == BlockState::kSealed && !block.name);
  if (!names_.try_emplace(name, id).second) return false;
  block.name = name;
  return true;
}

std::optional<BlockId> BlockPool::find(const BlockName& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  const BlockId id = found->second;
  if (blocks_[id].owners++ == 0) leave_cached(id);
  return id;
}

void BlockPool::enter_cached(BlockId id) {
  Block& block = blocks_[id];
  block.older = newest_;
  block.newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = id;
  newest_ = id;
  ++cached_;
}

void BlockPool::leave_cached(BlockId id) {
  Block& block = blocks_[id];
  (block.older == kNone ? oldest_ : blocks_[block.older].newer) = block.newer;
  (block.newer == kNone ? newest_ : blocks_[block.newer].older) = block.older;
  --cached_;
}

void BlockPool::evict_oldest() {
  const BlockId id = oldest_;
  Block& block = blocks_[id];
  leave_cached(id);
  if (on_evict_) on_evict_(id, *block.name);
  names_.erase(*block.name);
  block.name.reset();
  block.state = BlockState::kFree;
  free_.push_back(id);
}

void BlockPool::set_state(BlockId id, BlockState next) {
  assert(static_cast<int>(next) == static_cast<int>(blocks_[id].state) + 1);
  blocks_[id].state = next;
}

std::byte* BlockPool::slab_memory(BlockId id, int layer) const {
  assert(id >= 0 && layer >= first_layer_ && layer - first_layer_ < shape_.layers);
  return block(id) + sizes_.offset(layer - first_layer_);
}

std::uint16_t* BlockPool::page(BlockId id, int layer, int kv_head) const {
  return slab(id, layer) + 2 * shape_.page_plane_elements() * kv_head;
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_),
      ids_(std::exchange(other.ids_, {})),
      rows_pool_(other.rows_pool_),
      rows_(std::exchange(other.rows_, {})),
      window_(other.window_),
      tokens_(std::exchange(other.tokens_, 0)),
      sight_(other.sight_),
      gone_(std::exchange(other.gone_, 0)),
      lent_(std::exchange(other.lent_, false)) {}

BlockTable BlockTable::lent(BlockTable empty, Lent what) {
  empty.ids_ = std::move(what.ids);
  empty.rows_ = std::move(what.rows);
  empty.tokens_ = what.tokens;
  empty.sight_ = what.sight;
  empty.gone_ = what.gone;
  empty.lent_ = true;
  return empty;
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(ids_, other.ids_);
  std::swap(rows_pool_, other.rows_pool_);
  std::swap(rows_, other.rows_);
  std::swap(window_, other.window_);
  std::swap(tokens_, other.tokens_);
  std::swap(sight_, other.sight_);
  std::swap(gone_, other.gone_);
  std::swap(lent_, other.lent_);
  return *this;
}

// Blocks before `end`.
void BlockTable::drop(int end) {
  for (; gone_ < end; ++gone_) {
    if (coded()) release_rows(gone_);
    pool_->release(std::exchange(ids_[gone_], kNone));
  }
}

void BlockTable::skip_to(int first) {
  const int written = tokens_ / kBlockTokens;
  assert(tokens_ % kBlockTokens == 0 && first >= written);
  drop(written);
  ids_.insert(ids_.begin() + written, first - written, kNone);
  if (coded()) rows_.insert(rows_.begin() + written, first - written, kNone);
  gone_ = first;
  tokens_ = first * kBlockTokens;
}

Status BlockTable::grow(int tokens) {
  const int missing = blocks_for(tokens) - blocks();
  if (missing <= 0) return {};
  if (missing > pool_->blocks_free()) {
    return exhausted("the sequence needs " + std::to_string(missing) + " more KV blocks, " +
                     std::to_string(pool_->blocks_free()) + " are free");
  }
  ids_.reserve(ids_.size() + missing);
  for (int i = 0; i < missing; ++i) {
    KVLANE_ASSIGN(const BlockId id, pool_->allocate());
    ids_.push_back(id);
  }
  if (coded()) rows_.resize(ids_.size(), kNone);
  return {};
}

Status BlockTable::open_rows(int tokens) {
  if (!coded() || lent_) return {};
  std::vector<int> missing;
  for (int block = tokens_ / kBlockTokens; block < blocks_for(tokens); ++block) {
    if (rows_[block] == kNone) missing.push_back(block);
  }
  return take_rows(missing);
}

Status BlockTable::open_arriving_rows(int tokens) {
  if (!coded()) return {};
  assert(tokens_ == 0 && blocks_for(tokens) <= blocks());
  std::vector<int> missing;
  for (int block = 0; block < blocks_for(tokens); ++block) {
    if (arrives_as_rows(block, tokens)) missing.push_back(block);
  }
  return take_rows(missing);
}

// All or none, for blocks that have no rows.
Status BlockTable::take_rows(std::span<const int> blocks) {
  if (static_cast<int>(blocks.size()) > rows_pool_->blocks_free()) {
    return exhausted("the sequence needs rows of 16 bits for " + std::to_string(blocks.size()) +
                     " more KV blocks, there are some for " +
                     std::to_string(rows_pool_->blocks_free()));
  }
  for (const int block : blocks) {
    KVLANE_ASSIGN(rows_[block], rows_pool_->allocate());
  }
  return {};
}

int BlockTable::tokens_with_rows() const {
  int end = blocks();
  if (coded()) {
    end = tokens_ / kBlockTokens;
    for (int left = rows_pool_->blocks_free(); end < blocks(); ++end) {
      if (rows_[end] == kNone && left-- == 0) break;
    }
  }
  return end * kBlockTokens - tokens_;
}

void BlockTable::release_rows(int index) {
  if (rows_[index] != kNone) rows_pool_->release(std::exchange(rows_[index], kNone));
}

void BlockTable::set_tokens(int tokens) {
  assert(tokens >= tokens_ && blocks_for(tokens) <= blocks());
  if (lent_) {
    tokens_ = tokens;
    return;
  }
  const int first = tokens_ / kBlockTokens;
  const int next = tokens / kBlockTokens;  // the block of the next token
  for (int block = first; block < next; ++block) {
    pool_->set_state(ids_[block], BlockState::kFull);
    pool_->set_state(ids_[block], BlockState::kSealed);
  }
  tokens_ = tokens;
  if (!coded()) return;
  // The oldest that may have left the window since the last call.
  for (int block = std::max(0, first - window_.recent); block < next; ++block) {
    if (!window_.reads_rows(block, next)) release_rows(block);
  }
}

std::uint16_t* BlockTable::rows(int index, int layer) const {
  assert(!coded() || rows_[index] != kNone);
  return coded() ? rows_pool_->slab(rows_[index], layer) : pool_->slab(ids_[index], layer);
}

std::uint16_t* BlockTable::page(int index, int layer, int kv_head) const {
  return rows(index, layer) + 2 * pool_->shape().page_plane_elements() * kv_head;
}

void BlockTable::append_sealed(BlockId id) {
  assert(tokens_ == blocks() * kBlockTokens && pool_->state(id) == BlockState::kSealed);
  assert(!coded() || window_ == KvWindow{});
  ids_.push_back(id);
  if (coded()) rows_.push_back(kNone);
  tokens_ += kBlockTokens;
}

void BlockTable::adopt_next(BlockId id) {
  if (tokens_ == blocks() * kBlockTokens) return append_sealed(id);
  assert(tokens_ % kBlockTokens == 0);
  assert(pool_->state(id) == BlockState::kSealed && (!coded() || window_ == KvWindow{}));
  if (coded()) release_rows(tokens_ / kBlockTokens);
  pool_->release(std::exchange(ids_[tokens_ / kBlockTokens], id));
  tokens_ += kBlockTokens;
}

Status BlockTable::fork(const BlockTable& other) {
  assert(ids_.empty() && coded() == other.coded());
  const int complete = other.tokens_ / kBlockTokens;
  if (other.tokens_ % kBlockTokens != 0) {
    BlockPool& pool = coded() ? *rows_pool_ : *pool_;
    const BlockId from = coded() ? other.rows_[complete] : other.ids_[complete];
    KVLANE_ASSIGN(const BlockId open, pool.allocate());
    Status copied = pool.copy_block(open, from);
    if (copied.ok() && coded()) {
      auto sealed = pool_->allocate();
      if (sealed.ok()) ids_.push_back(*sealed);
      copied = sealed.status();
    }
    if (!copied.ok()) {
      pool.release(open);
      return copied;
    }
    (coded() ? rows_ : ids_).push_back(open);
  }
  share(other, complete);
  tokens_ = other.tokens_;
  gone_ = other.gone_;
  return {};
}

void BlockTable::share(const BlockTable& other, int complete) {
  for (int block = other.gone_; block < complete; ++block) {
    pool_->retain(other.ids_[block]);
    if (coded() && other.rows_[block] != kNone) rows_pool_->retain(other.rows_[block]);
  }
  ids_.insert(ids_.begin(), other.ids_.begin(), other.ids_.begin() + complete);
  if (coded()) rows_.insert(rows_.begin(), other.rows_.begin(), other.rows_.begin() + complete);
}

void BlockTable::publish(std::span<const BlockName> names, int first) {
  const int complete = std::min(tokens_ / kBlockTokens, static_cast<int>(names.size()));
  for (int block = std::max(first, gone_); block < complete; ++block) {
    pool_->publish(ids_[block], names[block]);
  }
}

void BlockTable::clear() {
  if (!lent_) {
    for (int block = 0; block < static_cast<int>(rows_.size()); ++block) release_rows(block);
    for (int block = blocks() - 1; block >= gone_; --block) pool_->release(ids_[block]);
  }
  rows_.clear();
  ids_.clear();
  tokens_ = gone_ = 0;
  lent_ = false;
}

}  // namespace kvlane
