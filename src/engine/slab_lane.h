// How a thread beside the engine's gets at slabs: where they lie, or, when that is in memory of a
// device, through a buffer of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cache/block_pool.h"
#include "model/accelerator.h"

namespace kvlane {

// For one thread at a time. A slab that is fetched or stored is final, or nobody's but the
// caller's.
class SlabLane {
 public:
  // To blocks in memory of the host.
  SlabLane() = default;
  // To those of a device, which outlives it.
  static Result<SlabLane> open(Accelerator& device, const KvShape& shape);

  // The slab as the host may read it, until the next call.
  Result<const std::byte*> fetch(const BlockPool& pool, BlockId block, int layer);

  // Where the slab's first `rows` rows are to be written, then store(): the pool's own memory, or
  // the buffer, and then the slab's other rows become zeros.
  std::byte* room(const BlockPool& pool, BlockId block, int layer, int rows);
  Status store(const BlockPool& pool, BlockId block, int layer);

 private:
  MemoryCopy copy_;             // empty for the host
  Accelerator::Memory buffer_;  // one slab
};

}  // namespace kvlane
