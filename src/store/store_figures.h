// What a store says of itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvlane {

struct StoreFigures {
  std::uint64_t extents = 0;
  std::uint64_t bytes = 0;  // on all disks, as limits count them
  std::uint64_t segments = 0;
  std::uint64_t memory_bytes = 0;  // of the tier in memory
  // Since the store was opened:
  std::uint64_t saved = 0, saved_bytes = 0;
  std::uint64_t present = 0;  // puts of what was there already
  std::uint64_t refused = 0;  // drafts for which saving had no memory
  std::uint64_t failed = 0;   // puts that ended with an error
  std::uint64_t evicted = 0;
  std::uint64_t reads = 0, read_bytes = 0;
  std::uint64_t memory_reads = 0;  // of these, from memory
  std::uint64_t device_reads = 0;  // of these, to memory of a device
  std::uint64_t prefetched = 0;    // extents that were brought into memory before they were read
  std::uint64_t damaged = 0;       // extents that were found wrong, and forgotten
};

}  // namespace kvlane
