// What is read goes through two rooms, of which one is filled while the other is read.
// SPDX-License-Identifier: Apache-2.0
#include "model/slab_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/memory.h"
#include "model/alignment.h"

namespace kvlane {

Result<SlabLane> SlabLane::open(Accelerator& device, const KvShape& shape, int coded_max,
                                std::size_t slab_bytes_max, int rooms) {
  SlabLane lane;
  KVLANE_ASSIGN(lane.coder_, SlabCoder::open(device, shape, coded_max));
  KVLANE_ASSIGN(lane.lane_, device.lane());
  const std::size_t bytes = std::max(shape.slab_bytes(), slab_bytes_max);
  lane.room_bytes_ = line_aligned(bytes);
  KVLANE_ASSIGN(lane.rooms_, device.allocate_host(rooms * lane.room_bytes_));
  return lane;
}

Result<SlabLane> SlabLane::over(std::unique_ptr<DeviceLane> lane, std::size_t slab_bytes,
                                int rooms) {
  SlabLane made;
  made.lane_ = std::move(lane);
  made.room_bytes_ = line_aligned(slab_bytes);
  KVLANE_ASSIGN(PageBuffer memory, PageBuffer::allocate(rooms * made.room_bytes_));
  std::byte* const at = memory.data();
  const auto owner = std::make_shared<PageBuffer>(std::move(memory));
  made.rooms_ = Accelerator::Memory(at, [owner](std::byte*) {});
  return made;
}

Status SlabLane::begin(const BlockPool& pool, std::span<const BlockId> blocks, int layer,
                       const DeviceMark* done) {
  slabs_.clear();
  for (const BlockId block : blocks) {
    slabs_.push_back({pool.slab_memory(block, layer), pool.slab_bytes(layer)});
  }
  at_ = 0;
  if (on_host() || slabs_.empty()) return {};
  if (done != nullptr) KVLANE_TRY(lane_->wait(*done));
  return copy_ahead();
}

Status SlabLane::begin(const BlockPool& pool, BlockId block, int first, int layers) {
  slabs_.clear();
  for (int layer = first; layer < first + layers; ++layer) {
    slabs_.push_back({pool.slab_memory(block, layer), pool.slab_bytes(layer)});
  }
  at_ = 0;
  return on_host() || slabs_.empty() ? Status() : copy_ahead();
}

Result<const std::byte*> SlabLane::next() {
  if (on_host()) return slabs_[at_++].data;
  KVLANE_TRY(lane_->finish());
  const std::byte* const slab = room_at(at_ % 2);
  ++at_;
  if (at_ < slabs_.size()) KVLANE_TRY(copy_ahead());
  return slab;
}

Status SlabLane::copy_ahead() {
  return lane_->copy(room_at(at_ % 2), slabs_[at_].data, slabs_[at_].bytes);
}

std::byte* SlabLane::room(const BlockPool& pool, BlockId block, int layer, int rows,
                          int which) const {
  if (on_host()) return pool.slab_memory(block, layer);
  std::byte* const buffer = room_at(which);
  // What is left there belongs to another sequence.
  if (rows < kBlockTokens) std::memset(buffer, 0, pool.slab_bytes(layer));
  return buffer;
}

Status SlabLane::store(const BlockPool& pool, BlockId block, int layer, int which) {
  KVLANE_TRY(give(pool, block, layer, which));
  return finish();
}

Status SlabLane::give(const BlockPool& pool, BlockId block, int layer, int which) {
  if (on_host()) return {};
  return lane_->copy(pool.slab_memory(block, layer), room_at(which), pool.slab_bytes(layer));
}

}  // namespace kvlane
