// Slabs through two buffers, of which one is filled while the other is read.
// SPDX-License-Identifier: Apache-2.0
#include "engine/slab_lane.h"

#include <algorithm>
#include <cstring>

namespace kvlane {
Result<SlabLane> SlabLane::open(Accelerator& device, const KvShape& shape, int coded_max,
                                std::size_t slab_bytes_max) {
  SlabLane lane;
  KVLANE_ASSIGN(lane.coder_, SlabCoder::open(device, shape, coded_max));
  KVLANE_ASSIGN(lane.lane_, device.lane());
  for (Accelerator::Memory& buffer : lane.buffers_) {
    KVLANE_ASSIGN(buffer, device.allocate_host(std::max(shape.slab_bytes(), slab_bytes_max)));
  }
  return lane;
}

Status SlabLane::begin(const BlockPool& pool, std::span<const BlockId> blocks, int layer,
                       const DeviceMark* done) {
  slabs_.clear();
  for (const BlockId block : blocks) slabs_.push_back(pool.slab_memory(block, layer));
  slab_bytes_ = pool.slab_bytes(layer);
  at_ = 0;
  if (on_host() || slabs_.empty()) return {};
  if (done != nullptr) KVLANE_TRY(lane_->wait(*done));
  return copy_ahead();
}

Result<const std::byte*> SlabLane::next() {
  if (on_host()) return slabs_[at_++];
  KVLANE_TRY(lane_->finish());
  const std::byte* const slab = buffers_[at_ % 2].get();
  ++at_;
  if (at_ < slabs_.size()) KVLANE_TRY(copy_ahead());
  return slab;
}

Status SlabLane::copy_ahead() {
  return lane_->copy(buffers_[at_ % 2].get(), slabs_[at_], slab_bytes_);
}

std::byte* SlabLane::room(const BlockPool& pool, BlockId block, int layer, int rows, Room which) {
  if (on_host()) return pool.slab_memory(block, layer);
  std::byte* const buffer = buffers_[static_cast<int>(which)].get();
  // What is left there belongs to another sequence.
  if (rows < kBlockTokens) std::memset(buffer, 0, pool.slab_bytes(layer));
  return buffer;
}

Status SlabLane::store(const BlockPool& pool, BlockId block, int layer, Room which) {
  if (on_host()) return {};
  KVLANE_TRY(lane_->copy(pool.slab_memory(block, layer), buffers_[static_cast<int>(which)].get(),
                         pool.slab_bytes(layer)));
  return lane_->finish();
}

}  // namespace kvlane
