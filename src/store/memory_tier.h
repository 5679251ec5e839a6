// Extents in memory above the disks: as they lie there, so that they are checked and decrypted the
// same way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "store/spare_pages.h"
#include "store/stored_extent.h"

namespace kvlane {

// The extents that were used last, up to a number of bytes; what is being prefetched counts from
// the beginning. Guarded by the store's lock.
class MemoryTier {
 public:
  explicit MemoryTier(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  bool wants(const StoredExtent& extent) const {
    return coming_bytes_ + bytes_of(extent) <= bytes_max_ && extent.bytes == nullptr &&
           extent.ahead == StoredExtent::Ahead::kNo;
  }
  // Precondition: wants(). Others go to make room; who reads them keeps them meanwhile.
  void add(const std::shared_ptr<StoredExtent>& extent, std::shared_ptr<PageBuffer> bytes) {
    make_room(bytes_of(*extent));
    keep(extent, std::move(bytes));
  }
  void remove(StoredExtent& extent) {
    if (extent.bytes == nullptr) return;
    note_read(extent);
    extent.bytes = nullptr;
    bytes_ -= bytes_of(extent);
    by_use_.erase(extent.at_in_memory);
  }
  void touch(StoredExtent& extent) {
    if (extent.bytes != nullptr) by_use_.splice(by_use_.end(), by_use_, extent.at_in_memory);
  }
  // What was prefetched has served its purpose.
  void note_read(StoredExtent& extent) {
    if (extent.ahead != StoredExtent::Ahead::kUnread) return;
    extent.ahead = StoredExtent::Ahead::kNo;
    ahead_bytes_ -= bytes_of(extent);
  }

  // Takes room for an extent that is to be prefetched; arrive() or cancel() follows. False: there
  // is none, or it is there.
  bool expect(StoredExtent& extent) {
    const std::uint64_t bytes = bytes_of(extent);
    if (!wants(extent) || ahead_bytes_ + bytes > bytes_max_ / 2) return false;
    make_room(bytes);
    extent.ahead = StoredExtent::Ahead::kComing;
    ahead_bytes_ += bytes;
    coming_bytes_ += bytes;
    return true;
  }
  void arrive(const std::shared_ptr<StoredExtent>& extent, std::shared_ptr<PageBuffer> bytes) {
    coming_bytes_ -= bytes_of(*extent);
    extent->ahead = StoredExtent::Ahead::kUnread;
    keep(extent, std::move(bytes));
  }
  void cancel(StoredExtent& extent) {
    coming_bytes_ -= bytes_of(extent);
    ahead_bytes_ -= bytes_of(extent);
    extent.ahead = StoredExtent::Ahead::kNo;
  }

  std::uint64_t bytes() const { return bytes_ + coming_bytes_; }

 private:
  // That it takes here.
  static std::uint64_t bytes_of(const StoredExtent& extent) {
    return SparePages::rounded(extent.head.extent_bytes());
  }
  void make_room(std::uint64_t bytes) {
    while (bytes_ + coming_bytes_ + bytes > bytes_max_) remove(*by_use_.front());
  }
  void keep(const std::shared_ptr<StoredExtent>& extent, std::shared_ptr<PageBuffer> bytes) {
    extent->bytes = std::move(bytes);
    extent->at_in_memory = by_use_.insert(by_use_.end(), extent);
    bytes_ += bytes_of(*extent);
  }

  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;         // of what is there
  std::uint64_t coming_bytes_ = 0;  // of what is being prefetched
  std::uint64_t ahead_bytes_ = 0;   // of that, and of what was prefetched and not read yet
  StoredExtent::List by_use_;       // the longest unused first
};

}  // namespace kvlane
