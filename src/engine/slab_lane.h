// How a thread beside the engine's gets at slabs: where they lie, or, when that is in memory of a
// device, through buffers of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "engine/slab_coder.h"
#include "model/accelerator.h"

namespace kvlane {

// For one thread at a time, which either reads slabs or writes them. A slab is final when it is
// read, or nobody's but the caller's.
class SlabLane {
 public:
  // To blocks in memory of the host.
  SlabLane() = default;
  // To those of a device, which outlives it: slabs of rows, or others of up to `slab_bytes_max`. Up
  // to `coded_max` slabs of rows at once go through its codecs.
  static Result<SlabLane> open(Accelerator& device, const KvShape& shape, int coded_max,
                               std::size_t slab_bytes_max = 0);

  bool on_host() const { return lane_ == nullptr; }
  // The codecs of the device; null on the host.
  SlabCoder* coder() { return coder_ ? &*coder_ : nullptr; }
  // The same, if it has this one; else the host codes slabs.
  SlabCoder* coder_of(const Codec& codec) { return SlabCoder::knows(codec) ? coder() : nullptr; }

  // From now on next() gives the slabs of these blocks, in order: on a device not before it has
  // reached `done`, if that is not null.
  Status begin(const BlockPool& pool, std::span<const BlockId> blocks, int layer,
               const DeviceMark* done);
  // As the host may read it, until the next call. While the caller does, the device copies the one
  // after it.
  Result<const std::byte*> next();

  // There are two of them, so that one slab can be made of another one.
  enum class Room : std::uint8_t { kFirst, kSecond };
  // Where the slab's first `rows` rows are to be written, then store(): the pool's own memory, or
  // a buffer, and then the slab's other rows become zeros. Aligned to 64.
  std::byte* room(const BlockPool& pool, BlockId block, int layer, int rows = kBlockTokens,
                  Room which = Room::kFirst);
  Status store(const BlockPool& pool, BlockId block, int layer, Room which = Room::kFirst);

 private:
  Status copy_ahead();

  std::optional<SlabCoder> coder_;
  std::unique_ptr<DeviceLane> lane_;            // null for the host
  std::array<Accelerator::Memory, 2> buffers_;  // a slab each
  std::size_t slab_bytes_ = 0;                  // of begin()'s
  std::vector<const std::byte*> slabs_;         // of begin()
  std::size_t at_ = 0;                          // the next one
};

}  // namespace kvlane
