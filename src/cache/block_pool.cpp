// Blocks and their owners.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_pool.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace kvlane {

Result<BlockPool> BlockPool::create(const KvShape& shape, std::size_t bytes) {
  const std::size_t fitting = bytes / shape.block_bytes();
  if (fitting == 0) {
    return invalid_argument("a KV memory of " + std::to_string(bytes) +
                            " bytes holds no block; one block of this model has " +
                            std::to_string(shape.block_bytes()) + " bytes");
  }
  const std::size_t blocks =
      std::min<std::size_t>(fitting, std::numeric_limits<std::int32_t>::max());
  KVLANE_ASSIGN(PageBuffer memory, PageBuffer::allocate(blocks * shape.block_bytes()));
  return BlockPool(shape, std::move(memory), static_cast<int>(blocks));
}

BlockPool::BlockPool(const KvShape& shape, PageBuffer memory, int blocks)
    : shape_(shape), memory_(std::move(memory)), blocks_(blocks), free_(blocks) {
  // Top of the stack is block 0, so that a small load touches the front of the pool only.
  for (int i = 0; i < blocks; ++i) free_[i] = blocks - 1 - i;
}

Result<BlockId> BlockPool::allocate() {
  if (free_.empty()) {
    return exhausted("all " + std::to_string(blocks_total()) + " KV blocks are in use");
  }
  const BlockId id = free_.back();
  free_.pop_back();
  blocks_[id] = {BlockState::kOpen, 1};
  return id;
}

void BlockPool::retain(BlockId id) {
  assert(blocks_[id].owners > 0);
  ++blocks_[id].owners;
}

void BlockPool::release(BlockId id) {
  assert(blocks_[id].owners > 0);
  if (--blocks_[id].owners > 0) return;
  blocks_[id].state = BlockState::kFree;
  free_.push_back(id);
}

void BlockPool::set_state(BlockId id, BlockState next) {
  assert(static_cast<int>(next) == static_cast<int>(blocks_[id].state) + 1);
  blocks_[id].state = next;
}

std::uint16_t* BlockPool::slab(BlockId id, int layer) const {
  assert(blocks_[id].owners > 0 && layer >= 0 && layer < shape_.layers);
  const std::size_t offset =
      static_cast<std::size_t>(id) * shape_.block_bytes() + layer * shape_.slab_bytes();
  return reinterpret_cast<std::uint16_t*>(memory_.data() + offset);
}

std::uint16_t* BlockPool::page(BlockId id, int layer, int kv_head) const {
  return slab(id, layer) + 2 * shape_.page_plane_elements() * kv_head;
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_),
      ids_(std::exchange(other.ids_, {})),
      tokens_(std::exchange(other.tokens_, 0)) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(ids_, other.ids_);
  std::swap(tokens_, other.tokens_);
  return *this;
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
  return {};
}

void BlockTable::set_tokens(int tokens) {
  assert(tokens >= tokens_ && blocks_for(tokens) <= blocks());
  for (int block = tokens_ / kBlockTokens; block < tokens / kBlockTokens; ++block) {
    pool_->set_state(ids_[block], BlockState::kFull);
    pool_->set_state(ids_[block], BlockState::kSealed);
  }
  tokens_ = tokens;
}

void BlockTable::clear() {
  for (const BlockId id : ids_) pool_->release(id);
  ids_.clear();
  tokens_ = 0;
}

}  // namespace kvlane
