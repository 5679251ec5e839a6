// The inside of a store: what its parts share.
//
// One thread saves. `work` is held by whoever writes segments or the catalogue: that thread, and
// collect_garbage(). `mutex` guards all that both and the callers see; nobody waits for a disk
// under it. Order: work, then mutex.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "store/catalogue.h"
#include "store/directories.h"
#include "store/disk_reserve.h"
#include "store/extent_index.h"
#include "store/memory_tier.h"
#include "store/spare_pages.h"
#include "store/store.h"

namespace kvlane {

struct ExtentDraft::Content {
  ExtentHead head;
  PageBuffer bytes;     // the page of the header, then the parts
  bool sealed = false;  // imported: checksums and tags are those of the header
  // Of the store, which may be gone by then: bytes of drafts, and where these go.
  std::shared_ptr<std::atomic<std::uint64_t>> counted;
  std::shared_ptr<SparePages> home;

  std::span<std::byte> part(std::size_t index) const {
    const ExtentPart& at = head.parts[index];
    return {bytes.data() + std::size_t{at.page} * kExtentPageBytes, at.bytes()};
  }

  ~Content() {
    if (counted != nullptr) *counted -= head.extent_bytes();
    if (home != nullptr) home->give(std::move(bytes));
  }
};

class Store::Impl {
 public:
  // A directory as an open store knows it; all under `mutex`, but who holds `work` may read it.
  struct Directory {
    std::filesystem::path path;
    std::uint64_t pages_max = 0;          // 0: no limit
    std::uint64_t pages = 0;              // of its segments, without holes
    bool holes = true;                    // the file system has them, as far as we know
    bool full = false;                    // its disk is, as this piece of work has found
    std::shared_ptr<StoredSegment> open;  // what is appended to; empty: the next extent begins one
  };

  // A put on its way.
  struct Save {
    ExtentDraft draft;
    int directory = 0;
    SaveDone done;
    Status status;
    bool present = false;                  // nothing is to be done
    const Save* twin = nullptr;            // of this group, with the same extent: its fate is ours
    std::shared_ptr<StoredExtent> extent;  // once it has a place
  };

  // Bytes that nobody needs any more.
  struct Hole {
    std::shared_ptr<StoredSegment> segment;
    std::uint64_t page = 0;
    std::uint64_t pages = 0;
  };

  // Reads that were asked for together.
  struct ReadBatch {
    std::vector<ExtentRead> reads;
    ReadDone done;
  };

  // What a piece of work will write to the catalogue before it gives anything up.
  struct Room {
    CatalogueChanges changes;  // removed and gone_segments alone
    std::vector<Hole> holes;
    std::vector<std::shared_ptr<StoredSegment>> gone;

    bool empty() const { return changes.empty() && holes.empty() && gone.empty(); }
    void add(Room other);
  };

  ~Impl();

  // store_open.cpp
  Status start(const StoreOptions& wanted, std::unique_ptr<StoreFiles> files_given);
  Status claim_directories(std::string& identity);
  Status open_catalogue(const std::string& identity);
  Status join_directories(const std::string& identity);
  Status load(CatalogueContents contents);
  Status open_segments(const CatalogueContents& contents, CatalogueChanges& changes);
  void remove_strangers();
  void list_extents(CatalogueContents& contents, CatalogueChanges& changes);
  void drop_empty_segments(CatalogueChanges& changes);
  void give_back_gaps();

  // store_gc.cpp
  struct Moved {
    std::shared_ptr<StoredExtent> extent;
    StoredExtent place;  // where it will be
  };
  std::vector<std::shared_ptr<StoredSegment>> worth_collecting();
  Status collect(const std::shared_ptr<StoredSegment>& segment, Collected& collected);
  Status copy_extent(const std::shared_ptr<StoredExtent>& extent, Moved& moved);
  void give_copy_back(const Moved& move, const Status& why, Room& room);
  Status settle(const std::shared_ptr<StoredSegment>& segment, std::deque<Moved>& moves,
                const Status& status, Collected& collected);

  // store_save.cpp
  void run();
  bool saves_now() const;
  std::vector<Save> take_group();
  void save(std::vector<Save>& group);
  Status seal(ExtentDraft::Content& draft);
  void place(Save& save, Room& room);
  Status place_in(int directory, std::uint64_t pages, StoredExtent& extent, Room& room);
  bool make_room(Directory& directory, int number, std::uint64_t pages, Room& room);
  void evict(const std::shared_ptr<StoredExtent>& extent, Room& room);
  void release(StoredSegment& segment, std::uint64_t pages, Room& room);
  Status begin_segment(int directory);
  void free_pages(int directory, std::uint64_t pages, Room& room);
  void put_back(Save& save, Room& room);
  std::vector<Save*> evict_for_full_disks(std::vector<Save>& group, Room& room);
  void retry_on_full_disks(std::vector<Save>& group);
  void keep_reserve(Room& room);
  Status commit(const CatalogueChanges& changes);
  Status give_up(Room& room);
  void give_up_other_keys(const ExtentHead& head);
  void admit(std::vector<Save>& group);
  void write_all(const std::vector<Save*>& group);
  void sync_all(const std::vector<Save*>& group);
  void commit_all(std::vector<Save>& group);
  void publish(std::vector<Save>& group);
  CatalogueChanges take_touched();

  // store_read.cpp
  bool opens(const ExtentHead& head) const;
  Status check_part(const ExtentHead& head, int index, std::span<std::byte> bytes) const;
  Status check_parts(const ExtentRead& read) const;
  void condemn(const std::shared_ptr<StoredExtent>& extent);
  void condemn_damaged(const std::shared_ptr<StoredExtent>& extent);
  void count_read(const std::shared_ptr<StoredExtent>& extent, std::size_t bytes);
  void read_to_device(const std::shared_ptr<ReadBatch>& batch, std::size_t which);
  void finish(const ExtentRead& read, Status& status);
  void serve(const std::shared_ptr<ReadBatch>& batch, std::size_t which, ByteView in_memory);
  void prefetch(const PinnedExtent& pinned);
  void finish_prefetch(const PinnedExtent& pinned, const std::shared_ptr<PageBuffer>& bytes,
                       Status status);
  // Header and parts, checked but not decrypted.
  Result<PageBuffer> read_whole(const std::shared_ptr<StoredExtent>& extent);
  void remember(const std::shared_ptr<StoredExtent>& extent, PageBuffer bytes);
  AesNonce part_nonce(const ExtentHead& head, int index) const;

  StoreOptions options;
  StoreOpening opening;
  std::uint64_t key_id = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;  // for the thread that saves
  std::condition_variable saved;    // for flush()
  std::deque<Save> queue;
  std::vector<std::shared_ptr<StoredExtent>> condemned;
  std::vector<std::weak_ptr<StoredExtent>> touched;
  std::uint64_t puts = 0;       // so far
  std::uint64_t puts_done = 0;  // the first of them: they are saved in their order
  std::size_t flushing = 0;     // callers that wait for some
  bool ending = false;
  std::unique_ptr<ExtentIndex> index;
  std::unique_ptr<MemoryTier> memory;
  std::vector<Directory> directories;
  std::map<std::uint32_t, std::shared_ptr<StoredSegment>> segments;
  StoreFigures figures;
  std::shared_ptr<std::atomic<std::uint64_t>> draft_bytes =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::shared_ptr<SparePages> spare = std::make_shared<SparePages>();

  std::mutex work;
  Descriptor lock;  // on the directories, for longer than the catalogue is open
  std::unique_ptr<Catalogue> catalogue;
  std::int64_t id_last = 0;
  std::uint32_t segment_last = 0;
  std::vector<std::optional<DirectoryMark>> marks;  // while the store is opened, of each directory
  std::vector<CatalogueSegment> new_segments;       // which have no row yet
  std::set<int> unsynced;  // directories whose new names may not be on the disk
  Room owed;               // what could not be given up yet, as the catalogue took no writes
  DiskReserve reserve;     // of directory 0

  std::unique_ptr<StoreFiles> files;
  std::thread thread;
};

}  // namespace kvlane
