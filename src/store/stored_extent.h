// An extent and a segment as an open store knows them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "cpu/memory.h"
#include "format/extent.h"
#include "store/files.h"

namespace kvlane {

// A file of extents. All but `file` under the store's lock.
struct StoredSegment {
  std::uint32_t number = 0;
  int directory = 0;
  std::filesystem::path path;
  std::unique_ptr<StoreFile> file;
  std::uint64_t end_page = 0;    // where the next extent would go
  std::uint64_t kept_pages = 0;  // that count against the directory's limit
  std::uint64_t extents = 0;     // with a row, or about to get one
};

struct StoredExtent {
  using List = std::list<std::shared_ptr<StoredExtent>>;

  std::int64_t id = 0;
  ExtentHead head;            // never changes
  std::atomic<int> pins = 0;  // the first one comes under the store's lock

  // Under the store's lock:
  std::shared_ptr<StoredSegment> segment;
  std::uint32_t page = 0;  // in its segment
  std::uint64_t used = 0;
  bool listed = false;                // in the index
  bool touched = false;               // `used` is newer than the catalogue's
  List::iterator at;                  // in the index's order of use
  std::shared_ptr<PageBuffer> bytes;  // header and parts as on the disk, if in the tier in memory
  List::iterator at_in_memory;
  // Prefetched. kComing: being read, `bytes` is empty. kUnread: there, and nobody has read it.
  enum class Ahead : std::uint8_t { kNo, kComing, kUnread };
  Ahead ahead = Ahead::kNo;
  // Reads that wait for what is coming; called without the lock, once it is there or has failed.
  using Arrived = std::function<void(const Status&, ByteView whole)>;
  std::vector<Arrived> waiting;

  std::uint64_t pages() const { return head.extent_bytes() / kExtentPageBytes; }
};

}  // namespace kvlane
