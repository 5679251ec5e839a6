// Extents in memory above the disks: as they lie there, so that they are checked and decrypted the
// same way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "store/stored_extent.h"

namespace kvlane {

// The extents that were used last, up to a number of bytes. Guarded by the store's lock.
class MemoryTier {
 public:
  explicit MemoryTier(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  bool wants(const StoredExtent& extent) const {
    return extent.head.extent_bytes() <= bytes_max_ && extent.bytes == nullptr;
  }
  // Precondition: wants(). Others go to make room; who reads them keeps them meanwhile.
  void add(const std::shared_ptr<StoredExtent>& extent, std::shared_ptr<PageBuffer> bytes) {
    extent->bytes = std::move(bytes);
    extent->at_in_memory = by_use_.insert(by_use_.end(), extent);
    bytes_ += extent->head.extent_bytes();
    while (bytes_ > bytes_max_) remove(*by_use_.front());
  }
  void remove(StoredExtent& extent) {
    if (extent.bytes == nullptr) return;
    extent.bytes = nullptr;
    bytes_ -= extent.head.extent_bytes();
    by_use_.erase(extent.at_in_memory);
  }
  void touch(StoredExtent& extent) {
    if (extent.bytes != nullptr) by_use_.splice(by_use_.end(), by_use_, extent.at_in_memory);
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  StoredExtent::List by_use_;  // the longest unused first
};

}  // namespace kvlane
