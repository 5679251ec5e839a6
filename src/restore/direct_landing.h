// Slabs that came from a disk to memory of a device without passing through the host: checked
// there, and copied to their blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "cache/block_pool.h"
#include "format/extent.h"
#include "model/accelerator.h"
#include "restore/direct_rooms.h"
#include "restore/slab_bodies.h"

namespace kvlane {

// A slab as it was read, which nobody has checked.
struct ArrivedSlab {
  const std::byte* bytes;  // in a room; aligned to 4,096
  const ExtentPart* part;  // what it should be
  BlockId block;
};

// For one thread.
class DirectLanding {
 public:
  // `bytes` of the device's memory for what is read. `slabs_max`: that land at once.
  static Result<std::unique_ptr<DirectLanding>> open(Accelerator& device,
                                                     gpu::DirectStorage& storage, std::size_t bytes,
                                                     int slabs_max);

  // Whether parts of an extent of this kind (SlabKind::is_of) are bytes that lie in a cache: rows
  // without a codec, or sealed slabs that are packed as they lie. Others need the host.
  static bool takes(const SlabKind& kind, const ExtentHead& head, int first, int count);

  // Memory to read into. Thread-safe.
  DirectRooms& rooms() { return *rooms_; }

  // Writes 1 to slabs_max slabs of a layer, which takes() has let through, to their blocks, where
  // they are when it returns. A slab whose checksum is not that of its part has kCorrupt in
  // `verdicts`, and its block garbage. What comes back is the device's error, after which all have.
  Status land(const SlabKind& kind, const BlockPool& pool, int layer,
              std::span<const ArrivedSlab> slabs, std::span<Status> verdicts);

 private:
  DirectLanding() = default;
  Status give(const SlabKind& kind, const BlockPool& pool, int layer,
              std::span<const ArrivedSlab> slabs);

  std::unique_ptr<DirectRooms> rooms_;
  std::unique_ptr<DeviceLane> lane_;
  Accelerator::Memory host_;  // tasks, then sums
  gpu::Xxh3Task* tasks_ = nullptr;
  std::uint64_t* sums_ = nullptr;
};

}  // namespace kvlane
