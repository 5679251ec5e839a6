// Garbage collection: extents leave segments that are mostly holes, or small, and these go.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/store_impl.h"

namespace kvlane {

// Segments that nobody appends to and that are less than half of what they could be; of a directory
// with one such segment only if there are holes in it.
std::vector<std::shared_ptr<StoredSegment>> Store::Impl::worth_collecting() {
  const std::lock_guard guard(mutex);
  std::map<const StoredSegment*, std::uint64_t> live;
  for (const auto& extent : index->all()) live[extent->segment.get()] += extent->pages();
  std::map<int, std::vector<std::shared_ptr<StoredSegment>>> small;
  for (const auto& [number, segment] : segments) {
    const Directory& directory = directories[static_cast<std::size_t>(segment->directory)];
    if (directory.open == segment) continue;
    if (live[segment.get()] * kExtentPageBytes * 2 < options.segment_bytes) {
      small[segment->directory].push_back(segment);
    }
  }
  std::vector<std::shared_ptr<StoredSegment>> worth;
  for (const auto& [directory, found] : small) {
    const bool full = live[found.front().get()] == found.front()->end_page;
    if (found.size() > 1 || !full) worth.insert(worth.end(), found.begin(), found.end());
  }
  return worth;
}

Status Store::Impl::copy_extent(const std::shared_ptr<StoredExtent>& extent, Moved& moved) {
  KVLANE_ASSIGN(const PageBuffer bytes, read_whole(extent));
  Room none;
  KVLANE_TRY(place_in(extent->segment->directory, extent->pages(), moved.place, none));
  moved.extent = extent;
  return transfer_and_wait(*files, *moved.place.segment->file, true,
                           std::uint64_t{moved.place.page} * kExtentPageBytes,
                           {bytes.data(), bytes.bytes()});
}

// Copies all of a segment or leaves it as it is. Holds `work`.
Status Store::Impl::collect(const std::shared_ptr<StoredSegment>& segment, Collected& collected) {
  std::vector<std::shared_ptr<StoredExtent>> extents;
  std::uint64_t pages = 0;
  {
    const std::lock_guard guard(mutex);
    for (const auto& extent : index->all()) {
      if (extent->segment != segment) continue;
      extents.push_back(extent);
      pages += extent->pages();
    }
    const Directory& directory = directories[static_cast<std::size_t>(segment->directory)];
    // Nothing is evicted for the sake of order.
    if (directory.pages_max != 0 && directory.pages + pages > directory.pages_max) return {};
  }
  std::deque<Moved> moves;
  Status status;
  for (const auto& extent : extents) {
    Status copied = copy_extent(extent, moves.emplace_back());
    if (copied.code() == Code::kCorrupt && moves.back().extent == nullptr) {
      moves.pop_back();
      condemn(extent);
      continue;
    }
    if (status.ok()) status = copied;
    if (!status.ok()) break;
  }
  CatalogueChanges changes;
  std::set<StoredSegment*> written;
  for (const Moved& move : moves) {
    if (move.extent == nullptr) continue;
    changes.moved.push_back({move.extent->id, move.place.segment->number, move.place.page});
    written.insert(move.place.segment.get());
  }
  for (StoredSegment* const target : written) {
    if (status.ok()) status = files->sync(*target->file);
  }
  const std::filesystem::path folder =
      segments_path(directories[static_cast<std::size_t>(segment->directory)].path);
  if (status.ok() && !written.empty()) status = files->sync_directory(folder);
  changes.new_segments = new_segments;
  if (status.ok()) status = commit(changes);
  if (status.ok()) new_segments.clear();
  return settle(segment, moves, status, collected);
}

// Under `mutex`, as put_back() does: no more goes into a file that has failed.
void Store::Impl::give_copy_back(const Moved& move, const Status& why, Room& room) {
  const auto& segment = move.place.segment;
  room.holes.push_back({segment, move.place.page, move.extent->pages()});
  Directory& directory = directories[static_cast<std::size_t>(segment->directory)];
  if (directory.open == segment && why.code() != Code::kExhausted) directory.open = nullptr;
}

// The extents are where they were copied to, or the copies are given up.
Status Store::Impl::settle(const std::shared_ptr<StoredSegment>& segment, std::deque<Moved>& moves,
                           const Status& status, Collected& collected) {
  Room room;
  {
    const std::lock_guard guard(mutex);
    for (Moved& move : moves) {
      if (move.place.segment == nullptr) continue;
      const std::uint64_t pages = move.extent->pages();
      if (status.ok()) {
        std::swap(move.extent->segment, move.place.segment);
        std::swap(move.extent->page, move.place.page);
        collected.moved += 1;
      }
      // Copies in vain are given back. The old bytes are read by those who have begun to, and go
      // with their segment, which these keep open.
      if (!status.ok()) give_copy_back(move, status, room);
      release(*move.place.segment, pages, room);
    }
  }
  collected.segments_gone +=
      static_cast<std::uint64_t>(std::count(room.gone.begin(), room.gone.end(), segment));
  KVLANE_TRY(give_up(room));
  return status;
}

Result<Store::Collected> Store::collect_garbage() {
  Collected collected;
  const std::lock_guard working(impl_->work);
  for (const auto& segment : impl_->worth_collecting()) {
    KVLANE_TRY(impl_->collect(segment, collected));
  }
  return collected;
}

}  // namespace kvlane
