// How a thread beside the engine's gets at slabs: where they lie, or, when that is in memory of a
// device, through buffers of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "model/accelerator.h"
#include "model/slab_coder.h"

namespace kvlane {

// For one thread at a time, which either reads slabs or writes them. A slab is final when it is
// read, or nobody's but the caller's. On a device slabs go through buffers of the host, its rooms.
class SlabLane {
 public:
  // To blocks in memory of the host.
  SlabLane() = default;
  // To those of a device, which outlives it: slabs of rows, or others of up to `slab_bytes_max`. Up
  // to `coded_max` slabs of rows at once go through its codecs. `rooms`, two at least: for so many
  // slabs that are written.
  static Result<SlabLane> open(Accelerator& device, const KvShape& shape, int coded_max,
                               std::size_t slab_bytes_max = 0, int rooms = 2);

  // To blocks that a lane of any kind reaches: slabs of up to `slab_bytes`, none of them through
  // codecs of a device.
  static Result<SlabLane> over(std::unique_ptr<DeviceLane> lane, std::size_t slab_bytes,
                               int rooms = 2);

  bool on_host() const { return lane_ == nullptr; }
  // The codecs of the device; null on the host.
  SlabCoder* coder() { return coder_ ? &*coder_ : nullptr; }
  // The same, if it has this one; else the host codes slabs.
  SlabCoder* coder_of(const Codec& codec) { return SlabCoder::knows(codec) ? coder() : nullptr; }

  // How many slabs are best read at once: codecs of a device code them together, and of others one
  // is on its way while the caller has another.
  int slabs_at_once() const {
    constexpr int kOnTheirWay = 16;
    return on_host() ? 1 : coder_ ? coder_->slabs_max() : kOnTheirWay;
  }

  // From now on next() gives the slabs of these blocks, in order: on a device not before it has
  // reached `done`, if that is not null.
  Status begin(const BlockPool& pool, std::span<const BlockId> blocks, int layer,
               const DeviceMark* done);
  // The same with slabs of a block, of `layers` layers from `first` on, which are there.
  Status begin(const BlockPool& pool, BlockId block, int first, int layers);
  // As the host may read it, until the next call. While the caller does, the device copies the one
  // after it.
  Result<const std::byte*> next();

  // Where the slab's first `rows` rows are to be written, then store() or give(): the pool's own
  // memory, or a room, and then the slab's other rows become zeros. Aligned to 64. For different
  // rooms from any threads.
  std::byte* room(const BlockPool& pool, BlockId block, int layer, int rows = kBlockTokens,
                  int which = 0) const;
  // The slab is in its place.
  Status store(const BlockPool& pool, BlockId block, int layer, int which = 0);
  // The slab is on its way: until finish() the room stays as it is, and nobody reads the slab.
  Status give(const BlockPool& pool, BlockId block, int layer, int which);
  // What was given is in its place, or the error says that something is not.
  Status finish() { return on_host() ? Status() : lane_->finish(); }

 private:
  Status copy_ahead();

  struct Slab {
    const std::byte* data;
    std::size_t bytes;
  };
  std::byte* room_at(std::size_t which) const { return rooms_.get() + which * room_bytes_; }

  std::optional<SlabCoder> coder_;
  std::unique_ptr<DeviceLane> lane_;  // null for the host
  Accelerator::Memory rooms_;         // one behind the other
  std::size_t room_bytes_ = 0;
  std::vector<Slab> slabs_;  // of begin()
  std::size_t at_ = 0;       // the next one
};

}  // namespace kvlane
