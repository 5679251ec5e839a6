// Slabs through two buffers, of which one is filled while the other is read.
// SPDX-License-Identifier: Apache-2.0
#include "engine/slab_lane.h"

#include <cstring>

namespace kvlane {
namespace {

std::byte* slab_of(const BlockPool& pool, BlockId block, int layer) {
  return reinterpret_cast<std::byte*>(pool.slab(block, layer));
}

}  // namespace

Result<SlabLane> SlabLane::open(Accelerator& device, const KvShape& shape, int coded_max) {
  SlabLane lane;
  KVLANE_ASSIGN(lane.coder_, SlabCoder::open(device, shape, coded_max));
  lane.slab_bytes_ = shape.slab_bytes();
  KVLANE_ASSIGN(lane.lane_, device.lane());
  for (Accelerator::Memory& buffer : lane.buffers_) {
    KVLANE_ASSIGN(buffer, device.allocate_host(shape.slab_bytes()));
  }
  return lane;
}

Status SlabLane::begin(const BlockPool& pool, std::span<const BlockId> blocks, int layer,
                       const DeviceMark* done) {
  slabs_.clear();
  for (const BlockId block : blocks) slabs_.push_back(slab_of(pool, block, layer));
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

std::byte* SlabLane::room(const BlockPool& pool, BlockId block, int layer, int rows) {
  if (on_host()) return slab_of(pool, block, layer);
  std::byte* const buffer = buffers_[0].get();
  // What is left there belongs to another sequence.
  if (rows < kBlockTokens) std::memset(buffer, 0, slab_bytes_);
  return buffer;
}

Status SlabLane::store(const BlockPool& pool, BlockId block, int layer) {
  if (on_host()) return {};
  KVLANE_TRY(lane_->copy(slab_of(pool, block, layer), buffers_[0].get(), slab_bytes_));
  return lane_->finish();
}

}  // namespace kvlane
