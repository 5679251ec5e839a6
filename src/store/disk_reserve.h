// Room on a disk for what must be written when it is full: extents can be evicted only once the
// catalogue has it in writing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/descriptor.h"

namespace kvlane {

// A file of allocated bytes that mean nothing. Thread-compatible.
class DiskReserve {
 public:
  // Many transactions of a group of extents, which change two or three pages of the catalogue each.
  static constexpr std::uint64_t kBytesMax = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kBytesMin = std::uint64_t{256} << 10;

  // Of which the room is free from now on; take() makes it a reserve. Where a file cannot be made,
  // or the file system allocates nothing ahead, there is none.
  static DiskReserve open(const std::filesystem::path& path);

  // Takes kBytesMax, or less where there is not as much. False: the disk is too full.
  bool take();
  // Gives its room to whoever writes next.
  void spend();

 private:
  Descriptor fd_;  // empty: there is none
  bool held_ = false;
};

}  // namespace kvlane
