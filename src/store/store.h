// The state store: slabs and hidden states of blocks that no longer fit into memory, on disks.
//
// It is a cache. Extents are saved in the background, found by the name of their block, read in
// batches into memory of the caller, and evicted when room is needed, the longest unused first.
// What it gives back is checked; what is damaged it reports, and forgets. Bytes and rules:
// spec/store.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "crypto/aes_gcm.h"
#include "format/extent.h"
#include "kvlane/status.h"
#include "store/files.h"
#include "store/store_figures.h"

namespace kvlane {

inline constexpr int kStoreDirectoriesMax = 64;

struct StoreDirectory {
  std::filesystem::path path;
  std::uint64_t bytes_max = 0;  // of its segments; 0: as much as the disk has
};

struct StoreOptions {
  std::vector<StoreDirectory> directories;  // one for each device; those of an existing store in
                                            // any order, and new empty ones
  bool create = false;  // make a store if the first directory is empty or missing; else kNotFound
  std::uint64_t saving_bytes_max = std::uint64_t{256} << 20;  // of drafts that are not saved yet
  std::uint64_t memory_bytes_max = 0;  // of extents that are kept in memory, too
  std::uint64_t segment_bytes = std::uint64_t{1} << 30;
  std::optional<AesKey> key;  // extents are encrypted; those of another key are not found
};

// What opening has found and done.
struct StoreOpening {
  bool created = false;
  bool rebuilt = false;                // the catalogue was damaged and made anew
  std::uint64_t extents_lost = 0;      // rows that were damaged, or of which bytes are missing
  std::uint64_t segments_missing = 0;  // of these
  std::uint64_t segments_removed = 0;  // which nobody needed, or that never got a row
  std::vector<std::string> notes;      // a sentence for each of these, for people
};

struct StoredExtent;

// An extent that is not evicted as long as this lives. Copyable; copies pin too. May outlive the
// store, and is then of no use. Thread-compatible.
class PinnedExtent {
 public:
  explicit PinnedExtent(std::shared_ptr<StoredExtent> extent);
  PinnedExtent(const PinnedExtent& other);
  PinnedExtent(PinnedExtent&& other) noexcept = default;
  PinnedExtent& operator=(PinnedExtent other) noexcept;
  ~PinnedExtent();

  const ExtentHead& head() const;

 private:
  friend class Store;
  std::shared_ptr<StoredExtent> extent_;
};

// Memory of an extent that is to be saved, for its parts to be written into; counts as memory of
// drafts until it is saved or gone. Movable. Thread-compatible; different parts may be written by
// different threads.
class ExtentDraft {
 public:
  ExtentDraft(ExtentDraft&&) noexcept;
  ExtentDraft& operator=(ExtentDraft&&) noexcept;
  ~ExtentDraft();

  const ExtentHead& head() const;
  // Of the block, where it was not known when the draft was made. Not for imported drafts.
  void set_name(const BlockName& name);
  // k_bytes + v_bytes of the part, anything at first; from a multiple of 4,096 on.
  std::span<std::byte> part(int index) const;

 private:
  friend class Store;
  struct Content;
  explicit ExtentDraft(std::unique_ptr<Content> content);
  std::unique_ptr<Content> content_;
};

// One read of a batch: `count` parts from `first` on into `memory`, which is aligned to 4,096 bytes
// and has extent_read_bytes() or more. Part p comes to
// (head.parts[p].page - head.parts[first].page) * 4,096; what is between parts is overwritten, too.
struct ExtentRead {
  PinnedExtent extent;
  int first = 0;
  int count = 0;
  std::span<std::byte> memory;
  // The memory is a device's that direct_storage() has taken, and the extent one that
  // reads_to_device(). NOBODY HAS CHECKED what arrives there: who asks for it compares the checksum
  // of each part, before anything of it is used, and tells damaged().
  bool unchecked_on_device = false;
};

// A multiple of 4,096. Precondition: the parts are there.
std::size_t extent_read_bytes(const ExtentHead& head, int first, int count);

// Thread-safe. One process at a time has a store open.
class Store {
 public:
  // Waits for nobody: kUnavailable when another process has the store open. kInvalidArgument for
  // directories that do not belong together, or cannot be written to.
  static Result<std::unique_ptr<Store>> open(const StoreOptions& options,
                                             std::unique_ptr<StoreFiles> files);
  // Waits until what was put is saved, and reads are done.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const StoreOpening& opening() const;
  int directories() const;  // how many there are; never changes

  // Memory for an extent of these fields; of parts only the lengths count. Does not wait:
  // kExhausted when drafts take all of saving_bytes_max, so that this state is not saved.
  Result<ExtentDraft> draft(ExtentHead head);
  // For who can wait: until what was put gives its memory back. kExhausted when drafts that nobody
  // has put take all of it.
  Result<ExtentDraft> wait_for_draft(const ExtentHead& head);

  // Called once, on a thread of the store, which must not be held up: ok() when the extent is on
  // the disk and can be found, or was there already.
  using SaveDone = std::function<void(const Status&)>;
  // Saves in the background, together with what others put within 50 ms, or at once if somebody
  // waits in flush(). `directory`: where it should go, extent_directory(); taken modulo their
  // number.
  void put(ExtentDraft draft, int directory, SaveDone done);
  // Returns when all that was put before has been saved or has failed.
  void flush();

  // All extents of a block that this store's key opens, in the order of their layers. They count as
  // used now.
  std::vector<PinnedExtent> find(const BlockKey& key);
  // Whether all `layers` layers from `layer` on are there; does not count as use.
  bool holds(const BlockKey& key, int layer, int layers) const;
  // Every extent, the longest unused first; does not count as use.
  std::vector<PinnedExtent> all() const;

  // Called once for each read, with its index, in any order, on a thread of the store that must not
  // be held up, or on the caller's. ok(): the parts are in memory, checked and decrypted (but see
  // ExtentRead::unchecked_on_device). kCorrupt:
  // they were damaged; the extent is gone. kUnavailable: the disk did not give them. kUnsupported:
  // of another key. When not ok(), what is in memory is worthless.
  using ReadDone = std::function<void(std::size_t index, const Status& status)>;
  // Begins all of the reads and returns how many of them no disk is asked for: the tier in memory
  // has their extents, or will have. Memory stays the caller's and must be left alone until done()
  // was called. What the tier in memory has is copied before it returns.
  std::size_t read(std::vector<ExtentRead> reads, ReadDone done);

  // Past the host's memory to that of a device: null where there is no way.
  gpu::DirectStorage* direct_storage() const;
  // Whether this extent can take it: it is not encrypted, not in the tier in memory nor on its way
  // there, and the file system does it, as far as is known.
  bool reads_to_device(const PinnedExtent& extent) const;

  // Brings whole extents that will be read soon into the tier in memory, in the background; returns
  // at once. Nothing happens for one that is there or on its way, or for which there is no room:
  // what was brought and nobody has read yet takes half of the tier at most, so that it is not
  // driven out by what is to be read after it. What is damaged is forgotten, as in a read; other
  // failures are left for the read to tell. A read of an extent that is on its way waits for it.
  void prefetch(std::vector<PinnedExtent> extents);

  // Deletes the extent; those who have it pinned may find it damaged.
  void forget(const PinnedExtent& extent);
  // The same for one that arrived wrong from an unchecked read.
  void damaged(const PinnedExtent& extent);

  struct Collected {
    std::uint64_t moved = 0;  // extents
    std::uint64_t segments_gone = 0;
  };
  // Copies what is left of segments that are mostly holes, and deletes these. Waits, and lets
  // saving wait; reads go on.
  Result<Collected> collect_garbage();

  // Reads the extent from the disk and checks header, checksums and, with a key, tags. Its status
  // is as of a read; a damaged extent is forgotten.
  Status verify(const PinnedExtent& extent);

  // The bytes of an extent as they lie on the disk, header first, checked: what `kvlane store
  // export` writes. And the way back: `bytes` are one extent, of which nobody else's word is taken.
  Result<Bytes> export_extent(const PinnedExtent& extent);
  Result<ExtentDraft> import_draft(ByteView bytes);

  StoreFigures figures() const;

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlane
