// Which extents can be found, and which of them was used when. In memory: the catalogue has the
// same for the next process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "store/stored_extent.h"

namespace kvlane {

// Guarded by the store's lock.
class ExtentIndex {
 public:
  explicit ExtentIndex(int directories) : by_use_(static_cast<std::size_t>(directories)) {}

  // As used last. False, and nothing changes, when a layer of it is there already.
  bool add(const std::shared_ptr<StoredExtent>& extent);
  // False when it is not there.
  bool remove(const std::shared_ptr<StoredExtent>& extent);
  void touch(StoredExtent& extent);

  // In the order of their layers.
  std::vector<std::shared_ptr<StoredExtent>> find(const BlockKey& key) const;
  bool holds(const BlockKey& key, int layer, int layers) const;
  bool overlaps(const ExtentHead& head) const;
  // The extent of a directory that was used the longest ago and is not pinned; empty: there is
  // none.
  std::shared_ptr<StoredExtent> oldest(int directory) const;
  std::vector<std::shared_ptr<StoredExtent>> all() const;

  std::size_t size() const { return size_; }
  std::uint64_t used_last() const { return clock_; }
  // So that what is added counts as newer than all before.
  void set_clock(std::uint64_t used) { clock_ = used; }

 private:
  std::unordered_map<BlockKey, std::vector<std::shared_ptr<StoredExtent>>, BlockKeyHash> blocks_;
  std::vector<StoredExtent::List> by_use_;  // of each directory, the longest unused first
  std::size_t size_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace kvlane
