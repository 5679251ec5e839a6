// Opening: marks, lock, catalogue, and what of it is still true. spec/store.md, section 10.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <system_error>

#include "cpu/background.h"
#include "crypto/sha256.h"
#include "store/rebuild.h"
#include "store/store_impl.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSegmentBytesMax = std::uint64_t{1} << 40;  // far below 2^32 pages

Result<std::uint64_t> id_of(const AesKey& key) {
  Sha256 hash;
  hash.update(as_byte_view("kvlane store key"));
  hash.update(key);
  KVLANE_ASSIGN(const Sha256Digest digest, hash.finish());
  std::uint64_t id = 0;
  std::memcpy(&id, digest.data(), sizeof id);
  return id;
}

std::string counted(std::uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

Status Store::Impl::start(const StoreOptions& wanted, std::unique_ptr<StoreFiles> files_given) {
  options = wanted;
  files = std::move(files_given);
  const std::size_t count = options.directories.size();
  if (count < 1 || count > std::size_t{kStoreDirectoriesMax}) {
    return invalid_argument("a store has 1 to " + std::to_string(kStoreDirectoriesMax) +
                            " directories");
  }
  if (options.segment_bytes < kExtentPageBytes || options.segment_bytes > kSegmentBytesMax) {
    return invalid_argument("segments of " + std::to_string(options.segment_bytes) +
                            " bytes are too small or too large");
  }
  if (options.key) {
    KVLANE_ASSIGN(key_id, id_of(*options.key));
  }
  std::string identity;
  KVLANE_TRY(claim_directories(identity));
  KVLANE_TRY(open_catalogue(identity));
  thread = std::thread([this] {
    work_in_background();
    run();
  });
  return {};
}

// Sorts them by number, as far as they have one, and takes the lock.
Status Store::Impl::claim_directories(std::string& identity) {
  std::vector<std::pair<std::optional<DirectoryMark>, StoreDirectory>> found;
  std::set<fs::path> distinct;
  for (const StoreDirectory& directory : options.directories) {
    std::error_code error;
    const fs::path path = fs::weakly_canonical(directory.path, error);
    if (error) return invalid_argument(directory.path.string() + ": " + error.message());
    if (!distinct.insert(path).second) {
      return invalid_argument(path.string() + " is given twice");
    }
    KVLANE_ASSIGN(auto mark, read_mark(path));
    if (!mark) KVLANE_TRY(require_empty(path));
    if (mark && !identity.empty() && mark->identity != identity) {
      return invalid_argument(path.string() + " belongs to another store than the others");
    }
    if (mark) identity = mark->identity;
    found.emplace_back(std::move(mark), StoreDirectory{path, directory.bytes_max});
  }
  // Those without a number come last, in the order they were given.
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return (a.first ? a.first->number : kStoreDirectoriesMax) <
           (b.first ? b.first->number : kStoreDirectoriesMax);
  });
  const std::string first = found.front().second.path.string();
  if (identity.empty() && !options.create) return not_found("there is no store in " + first);
  options.directories.clear();
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto& [mark, directory] = found[i];
    if (mark && mark->number != static_cast<int>(i)) {
      return invalid_argument(
          "directory " + std::to_string(i) + " of the store is missing, or given twice: " +
          directory.path.string() + " is its directory " + std::to_string(mark->number));
    }
    marks.push_back(mark);
    options.directories.push_back(directory);
    // A limit below a page is none the less one.
    const std::uint64_t least = directory.bytes_max > 0 ? 1 : 0;
    directories.push_back({.path = directory.path,
                           .pages_max = std::max(least, directory.bytes_max / kExtentPageBytes)});
  }
  if (identity.empty()) {
    opening.created = true;
    KVLANE_ASSIGN(identity, new_identity());
    // Before the lock, which lies in it; a second process would do the same.
    std::error_code error;
    fs::create_directories(directories[0].path, error);
    if (error) return invalid_argument("cannot create " + first + ": " + error.message());
  }
  KVLANE_ASSIGN(lock, lock_directory(directories[0].path));
  return {};
}

Status Store::Impl::join_directories(const std::string& identity) {
  for (std::size_t i = 0; i < directories.size(); ++i) {
    if (marks[i]) continue;
    KVLANE_TRY(mark_directory(directories[i].path, {identity, static_cast<int>(i)}));
    KVLANE_TRY(files->sync_directory(directories[i].path));
  }
  return {};
}

Status Store::Impl::open_catalogue(const std::string& identity) {
  const fs::path path = catalogue_path(directories[0].path);
  const auto count = static_cast<int>(directories.size());
  CatalogueContents contents;
  // A catalogue on a full disk needs a little room to be opened.
  reserve = DiskReserve::open(directories[0].path / "reserve");
  const auto read = [&]() -> Status {
    KVLANE_ASSIGN(Catalogue there, Catalogue::open(path, Catalogue::Access::kWrite));
    KVLANE_ASSIGN(contents, there.load());
    catalogue = std::make_unique<Catalogue>(std::move(there));
    return {};
  };
  const Status status = opening.created ? not_found("") : read();
  if (status.ok() && contents.identity != identity) {
    return invalid_argument(path.string() + " is the catalogue of another store");
  }
  if (status.ok()) {
    // What is new must not take the place of what is missing.
    const auto known = std::count_if(marks.begin(), marks.end(),
                                     [](const auto& mark) { return mark.has_value(); });
    if (known < contents.directories) {
      return invalid_argument("the store has " + std::to_string(contents.directories) +
                              " directories, of which " + std::to_string(known) + " are given");
    }
  }
  if (!status.ok() && !opening.created) {
    // What another program of ours may be using, or a disk in trouble, is left as it is.
    const Code code = status.code();
    if (code != Code::kNotFound && code != Code::kCorrupt && code != Code::kUnsupported) {
      return status;
    }
  }
  KVLANE_TRY(join_directories(identity));
  if (!status.ok()) {
    std::vector<fs::path> paths;
    for (const Directory& directory : directories) paths.push_back(directory.path);
    KVLANE_ASSIGN(contents, contents_from_segments(*files, paths));
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::error_code ignored;  // it may not be there
      fs::rename(path.string() + suffix, path.string() + ".bad" + suffix, ignored);
    }
    // Without segments there was nothing yet: a process was killed before it had a catalogue.
    opening.rebuilt = !contents.segments.empty();
    if (opening.rebuilt) {
      opening.notes.push_back("the catalogue was made anew from the segments: " + status.message());
    }
    KVLANE_ASSIGN(Catalogue made, Catalogue::create(path, identity, count,
                                                    {.new_segments = contents.segments,
                                                     .added = contents.extents}));
    catalogue = std::make_unique<Catalogue>(std::move(made));
    KVLANE_TRY(files->sync_directory(directories[0].path));
  }
  if (contents.directories < count) KVLANE_TRY(catalogue->set_directories(count));
  return load(std::move(contents));
}

Status Store::Impl::load(CatalogueContents contents) {
  index = std::make_unique<ExtentIndex>(static_cast<int>(directories.size()));
  memory = std::make_unique<MemoryTier>(options.memory_bytes_max);
  CatalogueChanges changes;
  changes.removed = contents.bad;
  opening.extents_lost = contents.bad.size();
  KVLANE_TRY(open_segments(contents, changes));
  list_extents(contents, changes);
  drop_empty_segments(changes);
  // Rows first: a file that lost its row is deleted the next time.
  if (!changes.empty()) KVLANE_TRY(catalogue->commit(changes));
  remove_strangers();
  give_back_gaps();
  reserve.take();
  if (opening.extents_lost > 0) {
    opening.notes.push_back(counted(opening.extents_lost, "extent") +
                            " had damaged rows or lost their bytes and will be computed again");
  }
  if (opening.segments_missing > 0) {
    opening.notes.push_back(counted(opening.segments_missing, "segment") + " missing");
  }
  return {};
}

Status Store::Impl::open_segments(const CatalogueContents& contents, CatalogueChanges& changes) {
  for (const CatalogueSegment& row : contents.segments) {
    segment_last = std::max(segment_last, row.segment);
    const bool known = row.directory >= 0 && row.directory < static_cast<int>(directories.size());
    auto segment = std::make_shared<StoredSegment>();
    segment->number = row.segment;
    segment->directory = row.directory;
    Status status = corrupt("a segment lies in no directory");
    if (known) {
      const Directory& directory = directories[static_cast<std::size_t>(row.directory)];
      segment->path = segments_path(directory.path) / segment_file_name(row.segment);
      auto file = files->open(segment->path, FileAccess::kOpen, row.directory);
      status = file.status();
      // What cannot be opened now may be there all the same: only what is missing is given up.
      if (!status.ok() && status.code() != Code::kNotFound) {
        return status.with_context("The store is left as it is");
      }
      if (file.ok()) segment->file = std::move(*file);
    }
    if (status.ok()) {
      KVLANE_ASSIGN(const std::uint64_t bytes, files->bytes(*segment->file));
      segment->end_page = bytes / kExtentPageBytes;
      segments[row.segment] = std::move(segment);
      continue;
    }
    opening.segments_missing += 1;
    changes.gone_segments.push_back(row.segment);
  }
  return {};
}

void Store::Impl::list_extents(CatalogueContents& contents, CatalogueChanges& changes) {
  for (CatalogueExtent& row : contents.extents) {
    id_last = std::max(id_last, row.id);
    const auto segment = segments.find(row.segment);
    auto extent = std::make_shared<StoredExtent>();
    extent->id = row.id;
    extent->page = row.page;
    extent->head = std::move(row.head);
    const bool there = segment != segments.end() &&
                       std::uint64_t{row.page} + extent->pages() <= segment->second->end_page;
    if (there) extent->segment = segment->second;
    if (!there || !index->add(extent)) {
      opening.extents_lost += 1;
      changes.removed.push_back(row.id);
      continue;
    }
    extent->segment->extents += 1;
    extent->segment->kept_pages += extent->pages();
    directories[static_cast<std::size_t>(extent->segment->directory)].pages += extent->pages();
    extent->used = row.used;
  }
  for (const std::int64_t id : contents.bad) id_last = std::max(id_last, id);
  if (!contents.extents.empty()) {
    index->set_clock(std::max(index->used_last(), contents.extents.back().used));
  }
}

void Store::Impl::drop_empty_segments(CatalogueChanges& changes) {
  for (auto entry = segments.begin(); entry != segments.end();) {
    if (entry->second->extents > 0) {
      ++entry;
      continue;
    }
    changes.gone_segments.push_back(entry->first);
    entry = segments.erase(entry);
  }
}

// Files that no row speaks of: begun by a process that was killed, or emptied above.
void Store::Impl::remove_strangers() {
  for (const Directory& directory : directories) {
    const fs::path folder = segments_path(directory.path);
    const auto entries = files->list(folder);
    if (!entries.ok()) continue;
    for (const FileEntry& entry : *entries) {
      const auto number = segment_number(entry.name);
      if (!number) continue;
      segment_last = std::max(segment_last, *number);
      if (segments.contains(*number)) continue;
      if (files->remove(folder / entry.name).ok()) opening.segments_removed += 1;
    }
  }
}

// What lies between extents and behind the last one: evicted, or written in vain.
void Store::Impl::give_back_gaps() {
  std::map<StoredSegment*, std::vector<std::pair<std::uint64_t, std::uint64_t>>> extents;
  for (const auto& extent : index->all()) {
    extents[extent->segment.get()].emplace_back(extent->page, extent->pages());
  }
  for (auto& [segment, places] : extents) {
    Directory& directory = directories[static_cast<std::size_t>(segment->directory)];
    std::sort(places.begin(), places.end());
    places.emplace_back(segment->end_page, 0);
    std::uint64_t page = 0;
    for (const auto& place : places) {
      const std::uint64_t gap = place.first > page ? place.first - page : 0;
      if (gap > 0 && directory.holes) {
        const Status status =
            files->give_back(*segment->file, page * kExtentPageBytes, gap * kExtentPageBytes);
        directory.holes = status.code() != Code::kUnsupported;
      }
      if (gap > 0 && !directory.holes) {
        segment->kept_pages += gap;
        directory.pages += gap;
      }
      page = std::max(page, place.first + place.second);
    }
  }
}

}  // namespace kvlane
