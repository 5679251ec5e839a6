// Slabs through a buffer.
// SPDX-License-Identifier: Apache-2.0
#include "engine/slab_lane.h"

#include <cstring>

namespace kvlane {
namespace {

std::byte* slab_of(const BlockPool& pool, BlockId block, int layer) {
  return reinterpret_cast<std::byte*>(pool.slab(block, layer));
}

}  // namespace

Result<SlabLane> SlabLane::open(Accelerator& device, const KvShape& shape) {
  SlabLane lane;
  KVLANE_ASSIGN(lane.copy_, device.copies());
  KVLANE_ASSIGN(lane.buffer_, device.allocate_host(shape.slab_bytes()));
  return lane;
}

Result<const std::byte*> SlabLane::fetch(const BlockPool& pool, BlockId block, int layer) {
  const std::byte* const slab = slab_of(pool, block, layer);
  if (!copy_) return slab;
  KVLANE_TRY(copy_(buffer_.get(), slab, pool.shape().slab_bytes()));
  return static_cast<const std::byte*>(buffer_.get());
}

std::byte* SlabLane::room(const BlockPool& pool, BlockId block, int layer, int rows) {
  if (!copy_) return slab_of(pool, block, layer);
  // What is left there belongs to another sequence.
  if (rows < kBlockTokens) std::memset(buffer_.get(), 0, pool.shape().slab_bytes());
  return buffer_.get();
}

Status SlabLane::store(const BlockPool& pool, BlockId block, int layer) {
  if (!copy_) return {};
  return copy_(slab_of(pool, block, layer), buffer_.get(), pool.shape().slab_bytes());
}

}  // namespace kvlane
