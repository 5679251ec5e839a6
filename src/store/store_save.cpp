// Saving: drafts become extents on disks in groups, each step for all of a group before the next.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <span>

#include "format/checksum.h"
#include "store/directories.h"
#include "store/store_impl.h"

namespace kvlane {
namespace {

// One sync and one transaction serve a group. Larger ones save nothing more, and keep drafts
// longer.
constexpr std::uint64_t kGroupBytesMax = std::uint64_t{64} << 20;
constexpr std::size_t kGroupSavesMax = 256;
// The first of a group waits so long for others, unless somebody waits for it.
constexpr std::chrono::milliseconds kGroupWait{50};

bool overlap(const ExtentHead& a, const ExtentHead& b) {
  return a.key == b.key && a.layer < b.layer + b.layers() && b.layer < a.layer + a.layers();
}

Status other_extents_status() {
  return invalid_argument("some layers of the block are stored already, in other extents");
}

}  // namespace

void Store::Impl::run() {
  std::unique_lock guard(mutex);
  for (;;) {
    changed.wait(guard, [this] { return ending || !queue.empty() || !condemned.empty(); });
    if (queue.empty() && condemned.empty()) return;
    changed.wait_for(guard, kGroupWait, [this] { return saves_now(); });
    std::vector<Save> group = take_group();
    guard.unlock();
    {
      const std::lock_guard working(work);
      save(group);
    }
    const std::size_t count = group.size();
    for (Save& each : group) {
      if (each.done) each.done(each.status);
    }
    group.clear();
    guard.lock();
    puts_done += count;
    saved.notify_all();
  }
}

// Under `mutex`: whether waiting for a larger group would serve nobody.
bool Store::Impl::saves_now() const {
  return ending || flushing > 0 || !condemned.empty() || queue.size() >= kGroupSavesMax ||
         *draft_bytes > options.saving_bytes_max / 2;
}

std::vector<Store::Impl::Save> Store::Impl::take_group() {
  std::vector<Save> group;
  std::uint64_t bytes = 0;
  while (!queue.empty() && bytes < kGroupBytesMax && group.size() < kGroupSavesMax) {
    bytes += queue.front().draft.head().extent_bytes();
    group.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return group;
}

void Store::Impl::Room::add(Room other) {
  const auto append = [](auto& to, auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(changes.removed, other.changes.removed);
  append(changes.gone_segments, other.changes.gone_segments);
  append(holes, other.holes);
  append(gone, other.gone);
}

void Store::Impl::save(std::vector<Save>& group) {
  Room room;
  for (Directory& directory : directories) directory.full = false;
  keep_reserve(room);
  for (const Save& each : group) give_up_other_keys(each.draft.head());
  {
    const std::lock_guard guard(mutex);
    for (const auto& extent : std::exchange(condemned, {})) evict(extent, room);
  }
  admit(group);
  for (Save& each : group) {
    if (each.status.ok() && !each.present) each.status = seal(*each.draft.content_);
    if (each.status.ok() && !each.present) place(each, room);
  }
  if (const Status status = give_up(room); !status.ok()) {
    for (Save& each : group) {
      if (!each.present && each.status.ok()) each.status = status;
    }
  }
  reserve.take();
  std::vector<Save*> all;
  for (Save& each : group) all.push_back(&each);
  write_all(all);
  sync_all(all);
  retry_on_full_disks(group);
  commit_all(group);
  publish(group);
}

// Of the same layers of that block, for one that can be read here.
void Store::Impl::give_up_other_keys(const ExtentHead& head) {
  if (!opens(head)) return;
  std::vector<std::shared_ptr<StoredExtent>> others;
  {
    const std::lock_guard guard(mutex);
    others = index->find(head.key);
  }
  for (const auto& other : others) {
    if (overlap(head, other->head) && !opens(other->head)) condemn(other);
  }
}

// What is there already needs no work.
void Store::Impl::admit(std::vector<Save>& group) {
  const std::lock_guard guard(mutex);
  for (std::size_t i = 0; i < group.size(); ++i) {
    Save& save = group[i];
    const ExtentHead& head = save.draft.head();
    if (index->overlaps(head)) {
      save.present = index->holds(head.key, head.layer, head.layers());
      if (!save.present) save.status = other_extents_status();
      continue;
    }
    for (std::size_t j = 0; j < i && !save.present; ++j) {
      const ExtentHead& other = group[j].draft.head();
      if (group[j].present || !group[j].status.ok() || !overlap(head, other)) continue;
      save.present = head.layer == other.layer && head.layers() == other.layers();
      if (!save.present) save.status = other_extents_status();
      save.twin = &group[j];
    }
  }
}

// Encrypts, checksums, writes the header's page.
Status Store::Impl::seal(ExtentDraft::Content& draft) {
  ExtentHead& head = draft.head;
  if (!draft.sealed) {
    if (options.key) {
      head.encrypted = true;
      head.key_id = key_id;
      KVLANE_TRY(secure_random(head.nonce));
    }
    KVLANE_ASSIGN(const Bytes before, build_extent_head(head));
    for (std::size_t p = 0; p < head.parts.size(); ++p) {
      const auto bytes = draft.part(p);
      if (options.key) {
        ByteWriter also;
        also.write_bytes(ByteView(before).first(kExtentFixedBytes));
        also.write(static_cast<std::uint32_t>(p));
        const AesNonce nonce = part_nonce(head, static_cast<int>(p));
        KVLANE_ASSIGN(head.parts[p].tag, aes_gcm_encrypt(*options.key, nonce, also.bytes(), bytes));
      }
      head.parts[p].checksum = xxh3_64(bytes);
    }
    draft.sealed = true;
  }
  KVLANE_ASSIGN(const Bytes page, build_extent_head(head));
  std::memcpy(draft.bytes.data(), page.data(), page.size());
  return {};
}

// In the directory it should go to, or the next that takes it.
void Store::Impl::place(Save& save, Room& room) {
  auto extent = std::make_shared<StoredExtent>();
  extent->head = save.draft.head();
  const auto count = static_cast<int>(directories.size());
  for (int k = 0; k < count; ++k) {
    const Status status = place_in((save.directory + k) % count, extent->pages(), *extent, room);
    if (status.ok()) {
      extent->id = ++id_last;
      save.status = {};
      save.extent = std::move(extent);
      return;
    }
    if (save.status.ok()) save.status = status;  // of the directory that was asked for
  }
}

Status Store::Impl::place_in(int number, std::uint64_t pages, StoredExtent& extent, Room& room) {
  Directory& directory = directories[static_cast<std::size_t>(number)];
  if (directory.full) return exhausted("the disk of " + directory.path.string() + " is full");
  {
    const std::lock_guard guard(mutex);
    if (!make_room(directory, number, pages, room)) {
      return exhausted("the limit of " + directory.path.string() + " leaves no room for " +
                       std::to_string(pages * kExtentPageBytes) + " bytes");
    }
  }
  const StoredSegment* const open = directory.open.get();
  if (open == nullptr || (open->end_page + pages) * kExtentPageBytes > options.segment_bytes) {
    const Status begun = begin_segment(number);
    directory.full = begun.code() == Code::kExhausted;
    KVLANE_TRY(begun);
  }
  const std::lock_guard guard(mutex);
  StoredSegment& segment = *directory.open;
  extent.segment = directory.open;
  extent.page = static_cast<std::uint32_t>(segment.end_page);
  segment.end_page += pages;
  segment.kept_pages += pages;
  segment.extents += 1;
  directory.pages += pages;
  return {};
}

// Under `mutex`, like evict() and release(). False when what is pinned takes too much.
bool Store::Impl::make_room(Directory& directory, int number, std::uint64_t pages, Room& room) {
  if (directory.pages_max == 0) return true;
  if (pages > directory.pages_max) return false;
  while (directory.pages + pages > directory.pages_max) {
    const auto oldest = index->oldest(number);
    if (oldest == nullptr) return false;
    evict(oldest, room);
    figures.evicted += 1;
  }
  return true;
}

// Nobody finds it from now on; its bytes go once the catalogue says so.
void Store::Impl::evict(const std::shared_ptr<StoredExtent>& extent, Room& room) {
  index->remove(extent);
  memory->remove(*extent);
  room.changes.removed.push_back(extent->id);
  room.holes.push_back({extent->segment, extent->page, extent->pages()});
  release(*extent->segment, extent->pages(), room);
}

void Store::Impl::release(StoredSegment& segment, std::uint64_t pages, Room& room) {
  Directory& directory = directories[static_cast<std::size_t>(segment.directory)];
  segment.extents -= 1;
  if (directory.holes) {
    segment.kept_pages -= pages;
    directory.pages -= pages;
  }
  if (segment.extents > 0) return;
  if (directory.open.get() == &segment) directory.open = nullptr;
  directory.pages -= std::exchange(segment.kept_pages, 0);
  room.changes.gone_segments.push_back(segment.number);
  std::erase_if(new_segments, [&](const auto& row) { return row.segment == segment.number; });
  const auto entry = segments.find(segment.number);
  room.gone.push_back(entry->second);
  segments.erase(entry);
}

Status Store::Impl::begin_segment(int number) {
  Directory& directory = directories[static_cast<std::size_t>(number)];
  auto segment = std::make_shared<StoredSegment>();
  segment->number = segment_last + 1;
  segment->directory = number;
  segment->path = segments_path(directory.path) / segment_file_name(segment->number);
  KVLANE_ASSIGN(segment->file, files->open(segment->path, FileAccess::kCreate, number));
  segment_last += 1;
  new_segments.push_back({segment->number, number});
  unsynced.insert(number);
  const std::lock_guard guard(mutex);
  segments[segment->number] = segment;
  directory.open = std::move(segment);
  return {};
}

// Under `mutex`: evicts what was used the longest ago until so much is free, or nothing is left.
void Store::Impl::free_pages(int number, std::uint64_t pages, Room& room) {
  for (std::uint64_t freed = 0; freed < pages;) {
    const auto oldest = index->oldest(number);
    if (oldest == nullptr) return;
    evict(oldest, room);
    figures.evicted += 1;
    freed += oldest->pages();
  }
}

// A reserve that was spent is taken anew, if need be from what directory 0 has.
void Store::Impl::keep_reserve(Room& room) {
  if (reserve.take()) return;
  const std::lock_guard guard(mutex);
  free_pages(0, DiskReserve::kBytesMin / kExtentPageBytes, room);
}

// On a full disk the reserve makes room, also in the file of the last transactions.
Status Store::Impl::commit(const CatalogueChanges& changes) {
  Status status = catalogue->commit(changes);
  if (status.code() != Code::kExhausted) return status;
  reserve.spend();
  catalogue->shrink();
  return catalogue->commit(changes);
}

// Commits that extents are gone, then gives their bytes back. What cannot be committed is owed, and
// part of the next attempt: until then nothing is written in the place of these extents.
Status Store::Impl::give_up(Room& room) {
  room.add(std::exchange(owed, {}));
  const Status committed = room.changes.empty() ? Status() : commit(room.changes);
  if (!committed.ok()) {
    owed = std::exchange(room, {});
    return committed;
  }
  for (const Hole& hole : room.holes) {
    const auto number = static_cast<std::size_t>(hole.segment->directory);
    Directory& directory = directories[number];
    const bool gone =
        std::find(room.gone.begin(), room.gone.end(), hole.segment) != room.gone.end();
    if (gone || !directory.holes) continue;
    const Status status = files->give_back(*hole.segment->file, hole.page * kExtentPageBytes,
                                           hole.pages * kExtentPageBytes);
    if (status.ok()) continue;
    const std::lock_guard guard(mutex);
    if (status.code() == Code::kUnsupported) directory.holes = false;
    hole.segment->kept_pages += hole.pages;
    directory.pages += hole.pages;
  }
  // A file that cannot be removed has no row, so it goes when the store is opened again.
  for (const auto& segment : room.gone) (void)files->remove(segment->path);
  return {};
}

// One write of a file after the other: where files grow, file systems let one in at a time, and the
// others would wait for it busily, on processors that answers need.
void Store::Impl::write_all(const std::vector<Save*>& group) {
  std::vector<Save*> writes;
  std::map<const StoredSegment*, std::vector<Save*>> lines;
  for (Save* const save : group) {
    if (!save->status.ok() || save->extent == nullptr) continue;
    writes.push_back(save);
    lines[save->extent->segment.get()].push_back(save);
  }
  std::latch left(static_cast<std::ptrdiff_t>(writes.size()));
  const std::function<void(std::span<Save* const>)> write = [&](std::span<Save* const> line) {
    Save* const save = line.front();
    const auto bytes = static_cast<std::size_t>(save->extent->head.extent_bytes());
    files->submit({.file = save->extent->segment->file.get(),
                   .write = true,
                   .offset = std::uint64_t{save->extent->page} * kExtentPageBytes,
                   .memory = {save->draft.content_->bytes.data(), bytes},
                   .done = [&write, &left, line](const Status& status) {
                     line.front()->status = status;
                     if (line.size() > 1) write(line.subspan(1));
                     left.count_down();
                   }});
  };
  for (const auto& line : lines) write(line.second);
  left.wait();
  for (const Save* const save : writes) {
    const auto number = static_cast<std::size_t>(save->extent->segment->directory);
    if (save->status.code() == Code::kExhausted) directories[number].full = true;
  }
}

void Store::Impl::sync_all(const std::vector<Save*>& group) {
  std::map<StoredSegment*, Status> outcomes;
  for (const Save* const save : group) {
    if (save->status.ok() && save->extent != nullptr) outcomes[save->extent->segment.get()];
  }
  for (auto& [segment, outcome] : outcomes) {
    outcome = files->sync(*segment->file);
    const int number = segment->directory;
    if (outcome.ok() && unsynced.contains(number)) {
      outcome =
          files->sync_directory(segments_path(directories[static_cast<std::size_t>(number)].path));
      if (outcome.ok()) unsynced.erase(number);
    }
  }
  for (Save* const save : group) {
    if (save->status.ok() && save->extent != nullptr) {
      save->status = outcomes[save->extent->segment.get()];
    }
  }
}

void Store::Impl::commit_all(std::vector<Save>& group) {
  CatalogueChanges changes = take_touched();
  std::uint64_t used = 0;
  {
    const std::lock_guard guard(mutex);
    used = index->used_last();
  }
  for (const Save& save : group) {
    if (!save.status.ok() || save.extent == nullptr) continue;
    const StoredExtent& extent = *save.extent;
    changes.added.push_back({extent.id, extent.segment->number, extent.page, ++used, extent.head});
  }
  changes.new_segments = new_segments;
  if (changes.empty()) return;
  const Status status = commit(changes);
  if (status.ok()) {
    new_segments.clear();
    return;
  }
  for (Save& save : group) {
    if (save.status.ok() && save.extent != nullptr) save.status = status;
  }
}

// Under `mutex`: gives the place of what failed back. Nothing more goes into a file that has
// failed, but where there was no room alone: on a full disk each group would begin another.
void Store::Impl::put_back(Save& save, Room& room) {
  const std::shared_ptr<StoredExtent> extent = std::exchange(save.extent, nullptr);
  Directory& directory = directories[static_cast<std::size_t>(extent->segment->directory)];
  room.holes.push_back({extent->segment, extent->page, extent->pages()});
  const bool was_open = directory.open == extent->segment;
  release(*extent->segment, extent->pages(), room);
  if (was_open && save.status.code() != Code::kExhausted) directory.open = nullptr;
}

// Of the saves that found a full disk, each directory makes room for as much as it could not take.
std::vector<Store::Impl::Save*> Store::Impl::evict_for_full_disks(std::vector<Save>& group,
                                                                  Room& room) {
  const std::lock_guard guard(mutex);
  std::vector<Save*> again;
  std::map<int, std::uint64_t> wanted;
  for (Save& save : group) {
    if (save.present || save.status.code() != Code::kExhausted) continue;
    const int number = save.extent != nullptr ? save.extent->segment->directory : save.directory;
    // Else it was a limit that left no room, or the catalogue's disk.
    if (!directories[static_cast<std::size_t>(number)].full) continue;
    wanted[number] += save.draft.head().extent_bytes() / kExtentPageBytes;
    if (save.extent != nullptr) put_back(save, room);
    again.push_back(&save);
  }
  for (const auto& [number, pages] : wanted) {
    const std::size_t before = room.changes.removed.size();
    free_pages(number, pages, room);
    // Where there is nothing to evict, others are asked.
    directories[static_cast<std::size_t>(number)].full = room.changes.removed.size() == before;
  }
  return again;
}

void Store::Impl::retry_on_full_disks(std::vector<Save>& group) {
  Room room;
  const std::vector<Save*> again = evict_for_full_disks(group, room);
  if (again.empty()) return;
  if (!give_up(room).ok()) return;
  Room more;
  for (Save* const save : again) {
    save->status = {};
    place(*save, more);
  }
  const Status status = give_up(more);
  for (Save* const save : again) {
    if (!status.ok() && save->status.ok()) save->status = status;
  }
  write_all(again);
  sync_all(again);
}

// What is on the disk can be found from now on; what failed gives its place back.
void Store::Impl::publish(std::vector<Save>& group) {
  Room room;
  {
    const std::lock_guard guard(mutex);
    for (Save& save : group) {
      if (save.twin != nullptr && save.present) save.status = save.twin->status;
      figures.present += save.present && save.status.ok();
      figures.failed += !save.status.ok();
      if (save.extent == nullptr) continue;
      if (save.status.ok()) {
        const std::shared_ptr<StoredExtent>& extent = save.extent;
        index->add(extent);
        figures.saved += 1;
        figures.saved_bytes += extent->head.extent_bytes();
        if (memory->wants(*extent)) {
          memory->add(extent, spare->shared(std::move(save.draft.content_->bytes)));
        }
        continue;
      }
      put_back(save, room);
    }
  }
  (void)give_up(room);  // else the bytes are found when the store is opened again
}

CatalogueChanges Store::Impl::take_touched() {
  CatalogueChanges changes;
  const std::lock_guard guard(mutex);
  for (const auto& weak : std::exchange(touched, {})) {
    const auto extent = weak.lock();
    if (extent == nullptr || !extent->touched) continue;
    extent->touched = false;
    if (extent->listed) changes.uses.push_back({extent->id, extent->used});
  }
  return changes;
}

}  // namespace kvlane
