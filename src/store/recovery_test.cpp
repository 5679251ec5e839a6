// Stores in trouble: power cuts at every moment, disks that fail, fill up, lose files and turn
// bits. Never a wrong byte; nothing durable is lost.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <fstream>
#include <mutex>
#include <set>

#include "store/directories.h"
#include "store/faulty_files.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using Kind = FaultyDisk::Kind;

// A store of two directories whose segments lie on a faulty disk; the catalogue is a file.
class Recovery : public ::testing::Test {
 protected:
  Recovery() {
    options_.directories = {{directory_.path() / "a", 0}, {directory_.path() / "b", 0}};
    options_.create = true;
  }

  Status open() {
    store_ = nullptr;
    auto store = Store::open(options_, std::make_unique<FaultyFiles>(disk_));
    if (!store.ok()) return store.status();
    store_ = std::move(*store);
    return {};
  }

  // Saves a block a directory; blocks whose layers are all reported as saved go to `durable`.
  void save_noting(int block, std::set<int>& durable, std::mutex& mutex) {
    auto left = std::make_shared<int>(2);
    for (const auto& [layer, layers] : {std::pair(0, 3), std::pair(3, 2)}) {
      store_->put(draft_of(*store_, hidden_head(block, layer, layers)), block,
                  [&durable, &mutex, left, block](const Status& status) {
                    const std::lock_guard lock(mutex);
                    if (status.ok() && --*left == 0) durable.insert(block);
                  });
    }
  }

  void expect_all_whole() {
    for (const PinnedExtent& extent : store_->all()) {
      const Status status = read_and_compare(*store_, extent);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  FaultyDisk::File& only_segment() {
    EXPECT_EQ(disk_->files().size(), 1U);
    return disk_->files().begin()->second;
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
  std::shared_ptr<FaultyDisk> disk_ = std::make_shared<FaultyDisk>();
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(Recovery, PowerCutsLoseNothingDurable) {
  options_.segment_bytes = 3 * block_bytes();
  std::set<int> durable;
  std::mutex mutex;
  int block = 0;
  for (std::uint64_t round = 0; round < 30; ++round) {
    // The power goes at a request of one kind or another, early or late.
    const PhiloxCounter drawn = philox4x32(round, {1, 0, 0, 0});
    const auto kind = static_cast<Kind>(1 + drawn[0] % 3);
    int left = static_cast<int>(drawn[1] % 8);
    bool off = false;
    disk_->fault = [&left, &off, kind](Kind asked, int, const std::string&) {
      off = off || (asked == kind && left-- == 0);
      return off ? unavailable("the power is off") : Status();
    };
    ASSERT_TRUE(open().ok());
    for (int n = 0; n < 6; ++n) save_noting(block++, durable, mutex);
    store_->flush();
    disk_->crash();
    store_ = nullptr;
    disk_->fault = nullptr;
    disk_->restart(round);

    ASSERT_TRUE(open().ok());
    EXPECT_TRUE(store_->opening().notes.empty()) << store_->opening().notes[0];
    expect_all_whole();
    for (const int saved : durable) EXPECT_TRUE(store_->holds(key_of(saved), 0, 5)) << saved;
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  EXPECT_GT(durable.size(), 30U);
  // Room that was begun to be used is free again.
  EXPECT_LE(disk_->bytes_kept(), store_->figures().bytes);
}

TEST_F(Recovery, DamageIsFoundForgottenAndRepaired) {
  ASSERT_TRUE(open().ok());
  save_and_wait_block(*store_, 0);
  save_and_wait_block(*store_, 1);
  FaultyDisk::File& file = only_segment();
  file.now[3 * kExtentPageBytes + 100] ^= std::byte{1};  // in layer 1 of block 0
  const auto found = store_->find(key_of(0));
  Bytes parts;
  EXPECT_TRUE(read_parts(*store_, found[0], 0, 1, parts).ok());  // layer 0 is fine
  const Status status = read_and_compare(*store_, found[0]);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("wrong checksum"));
  EXPECT_EQ(store_->figures().damaged, 1U);
  EXPECT_FALSE(store_->holds(key_of(0), 0, 3));
  expect_block(*store_, 1);
  // Computed again, saved again.
  ASSERT_TRUE(save_and_wait(*store_, hidden_head(0, 0, 3)).ok());
  expect_block(*store_, 0);
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(store_->opening().notes.empty());
  expect_block(*store_, 0);
}

TEST_F(Recovery, VerifyFindsDamageAnywhere) {
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 3; ++block) save_and_wait_block(*store_, block);
  for (const PinnedExtent& extent : store_->all()) EXPECT_TRUE(store_->verify(extent).ok());
  only_segment().now[50] ^= std::byte{1};  // a header, which reads do not need
  int bad = 0;
  for (const PinnedExtent& extent : store_->all()) {
    bad += store_->verify(extent).code() == Code::kCorrupt;
  }
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(blocks_there(*store_, 3), (std::vector<int>{1, 2}));
}

TEST_F(Recovery, ReadErrorsAreReportedAndForgiven) {
  ASSERT_TRUE(open().ok());
  save_and_wait_block(*store_, 0);
  bool broken = true;
  disk_->fault = [&broken](Kind kind, int, const std::string&) {
    return kind == Kind::kRead && broken ? unavailable("cannot read: Input/output error")
                                         : Status();
  };
  EXPECT_EQ(read_and_compare(*store_, store_->find(key_of(0))[0]).code(), Code::kUnavailable);
  broken = false;
  expect_block(*store_, 0);
  disk_->fault = nullptr;
  disk_->short_read = [](int) { return true; };
  EXPECT_EQ(read_and_compare(*store_, store_->find(key_of(0))[0]).code(), Code::kCorrupt);
  disk_->short_read = nullptr;
  EXPECT_FALSE(store_->holds(key_of(0), 0, 1));
}

TEST_F(Recovery, WriteErrorsFailWhatTheyConcernAndNothingElse) {
  ASSERT_TRUE(open().ok());
  for (const Kind kind : {Kind::kWrite, Kind::kSync, Kind::kCreate}) {
    for (int block = 0; block < 12; ++block) {
      bool failing = block % 3 == 1;
      disk_->fault = [&failing, kind](Kind asked, int, const std::string&) {
        return failing && asked == kind ? exhausted("the disk is full") : Status();
      };
      const int number = block + 100 * static_cast<int>(kind);
      const Status status = save_and_wait(*store_, hidden_head(number, 0, 3));
      // Only a new segment needs to be created.
      if (kind != Kind::kCreate) {
        EXPECT_EQ(status.ok(), !failing);
      }
      EXPECT_EQ(store_->holds(key_of(number), 0, 3), status.ok());
    }
  }
  disk_->fault = nullptr;
  expect_all_whole();
  const std::uint64_t extents = store_->figures().extents;
  EXPECT_GT(extents, 20U);
  EXPECT_EQ(store_->figures().bytes, extents * head_bytes(3));
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(store_->figures().extents, extents);
  EXPECT_EQ(store_->figures().bytes, extents * head_bytes(3));
  expect_all_whole();
}

TEST_F(Recovery, ADirectoryThatTakesNothingIsPassedOver) {
  ASSERT_TRUE(open().ok());
  const std::string a = (directory_.path() / "a").string();
  disk_->fault = [&a](Kind kind, int, const std::string& path) {
    return kind == Kind::kCreate && path.starts_with(a)
               ? invalid_argument("cannot create: Read-only file system")
               : Status();
  };
  for (int block = 0; block < 4; ++block) save_and_wait_block(*store_, block);
  for (int block = 0; block < 4; ++block) expect_block(*store_, block);
  for (const auto& [path, file] : disk_->files()) EXPECT_FALSE(path.starts_with(a)) << path;
}

TEST_F(Recovery, MissingAndShortSegmentsLoseTheirExtentsOnly) {
  options_.segment_bytes = 2 * block_bytes();
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 6; ++block) save_and_wait_block(*store_, block);
  store_ = nullptr;
  ASSERT_EQ(disk_->files().size(), 3U);
  disk_->files().erase(disk_->files().begin());                              // blocks 0 and 1
  disk_->files().begin()->second.now.resize(block_bytes() + 4096);           // block 3
  disk_->files()[(directory_.path() / "a/segments/00000099.seg").string()];  // nobody's
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(store_->opening().segments_missing, 1U);
  EXPECT_EQ(store_->opening().extents_lost, 6U);
  EXPECT_EQ(store_->opening().segments_removed, 1U);
  EXPECT_EQ(store_->opening().notes.size(), 2U);
  EXPECT_EQ(blocks_there(*store_, 6), (std::vector<int>{2, 4, 5}));
  expect_all_whole();
  // A segment that was there before is not written to again, nor is its name used.
  save_and_wait_block(*store_, 7);
  EXPECT_TRUE(disk_->files().contains((directory_.path() / "a/segments/00000100.seg").string()));
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(store_->opening().notes.empty());
}

TEST_F(Recovery, ADamagedCatalogueIsMadeAnew) {
  options_.segment_bytes = 2 * block_bytes();
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 5; ++block) {
    ASSERT_TRUE(save_and_wait(*store_, hidden_head(block, 0, 3), block).ok());
    ASSERT_TRUE(save_and_wait(*store_, hidden_head(block, 3, 2), block).ok());
  }
  store_ = nullptr;
  // Garbage in the beginning of a file does not hide what follows, nor does a torn extent.
  disk_->files().begin()->second.now[9] ^= std::byte{1};
  const std::filesystem::path path = catalogue_path(directory_.path() / "a");
  for (const bool damaged : {true, false}) {
    if (damaged) {
      std::ofstream(path) << std::string(10000, 'x');
    } else {
      std::filesystem::remove(path);
    }
    ASSERT_TRUE(open().ok());
    EXPECT_TRUE(store_->opening().rebuilt);
    EXPECT_THAT(store_->opening().notes.at(0), HasSubstr("made anew"));
    EXPECT_EQ(store_->figures().extents, 9U);
    expect_all_whole();
    store_ = nullptr;
  }
  EXPECT_TRUE(std::filesystem::exists(path.string() + ".bad"));
  ASSERT_TRUE(open().ok());
  EXPECT_FALSE(store_->opening().rebuilt);
  EXPECT_EQ(store_->figures().extents, 9U);
}

// Descriptors were short, or the disk was in trouble: nothing is given up for that.
TEST_F(Recovery, WhatCannotBeOpenedNowIsThereTheNextTime) {
  options_.segment_bytes = 2 * block_bytes();
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 6; ++block) save_and_wait_block(*store_, block);
  store_ = nullptr;
  const std::filesystem::path path = catalogue_path(directory_.path() / "a");
  for (const bool rebuilds : {false, true}) {
    if (rebuilds) std::filesystem::remove(path);
    int opened = 0;
    disk_->fault = [&opened](Kind kind, int, const std::string&) {
      return kind == Kind::kOpen && ++opened > 1 ? unavailable("Too many open files") : Status();
    };
    EXPECT_EQ(open().code(), Code::kUnavailable);
    disk_->fault = nullptr;
    EXPECT_EQ(disk_->files().size(), 3U);
    ASSERT_TRUE(open().ok());
    EXPECT_EQ(store_->opening().extents_lost, 0U);
    EXPECT_EQ(blocks_there(*store_, 6).size(), 6U);
    expect_all_whole();
    store_ = nullptr;
  }
}

TEST_F(Recovery, ADiskThatGivesNothingIsNoEmptyStore) {
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 4; ++block) save_and_wait_block(*store_, block);
  store_ = nullptr;
  std::filesystem::remove(catalogue_path(directory_.path() / "a"));
  disk_->fault = [](Kind kind, int, const std::string&) {
    return kind == Kind::kRead ? unavailable("cannot read: Input/output error") : Status();
  };
  EXPECT_EQ(open().code(), Code::kUnavailable);
  disk_->fault = nullptr;
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(store_->opening().rebuilt);
  EXPECT_EQ(blocks_there(*store_, 4).size(), 4U);
  expect_all_whole();
}

// A window of many pages that the disk does not give is read page by page.
TEST_F(Recovery, ALostSectorHidesOneExtentFromARebuild) {
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 4; ++block) save_and_wait_block(*store_, block);
  const std::uint64_t extents = store_->figures().extents;
  store_ = nullptr;
  std::filesystem::remove(catalogue_path(directory_.path() / "a"));
  only_segment();
  // The page with the second extent's header.
  disk_->lost_page = head_bytes(3) / kExtentPageBytes;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(store_->figures().extents, extents - 1);
  disk_->lost_page.reset();
  expect_all_whole();
}

// Copies of garbage collection failed: the file that they went to gets no more.
TEST_F(Recovery, NothingFollowsWhatGarbageCollectionCouldNotWrite) {
  options_.directories.pop_back();
  for (int block = 0; block < 2; ++block) {
    ASSERT_TRUE(open().ok());
    save_and_wait_block(*store_, block);
  }
  ASSERT_TRUE(open().ok());
  save_and_wait_block(*store_, 2);
  const std::size_t segments = disk_->files().size();
  disk_->fault = [](Kind kind, int, const std::string&) {
    return kind == Kind::kSync ? unavailable("cannot write: Input/output error") : Status();
  };
  EXPECT_EQ(store_->collect_garbage().status().code(), Code::kUnavailable);
  disk_->fault = nullptr;
  save_and_wait_block(*store_, 3);
  EXPECT_EQ(disk_->files().size(), segments + 1);
  for (int block = 0; block < 4; ++block) expect_block(*store_, block);
}

// Whoever reads an extent while it is moved still finds its bytes in the old place.
TEST_F(Recovery, GarbageCollectionMakesNoHolesWhereOthersMayRead) {
  options_.segment_bytes = 8 * block_bytes();
  for (int block = 0; block < 3; ++block) {
    ASSERT_TRUE(open().ok());
    save_and_wait_block(*store_, block);
  }
  FaultyDisk::File& file =
      disk_->files().begin()->second;  // its segment does not get empty at once
  file.now[kExtentPageBytes + 9] ^= std::byte{1};
  int holes = 0;
  disk_->fault = [&holes](Kind kind, int, const std::string&) {
    holes += kind == Kind::kGiveBack;
    return Status();
  };
  const auto collected = store_->collect_garbage();
  ASSERT_TRUE(collected.ok()) << collected.status().message();
  EXPECT_EQ(collected->moved, 3U);
  save_and_wait_block(*store_, 3);  // meanwhile the damaged one went, and its segment with it
  EXPECT_EQ(holes, 0);
  disk_->fault = nullptr;
  expect_all_whole();
  EXPECT_EQ(store_->figures().extents, 7U);
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(store_->opening().notes.empty());
  EXPECT_EQ(store_->figures().extents, 7U);
  expect_all_whole();
}

TEST_F(Recovery, DisksWithoutHolesAreEmptiedBySegments) {
  disk_->fault = [](Kind kind, int, const std::string&) {
    return kind == Kind::kGiveBack ? unsupported("no holes") : Status();
  };
  options_.directories.pop_back();
  options_.directories[0].bytes_max = 8 * block_bytes();
  options_.segment_bytes = 2 * block_bytes();
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 40; ++block) save_and_wait_block(*store_, block);
  EXPECT_LE(disk_->bytes_kept(), 8 * block_bytes());
  EXPECT_LE(store_->figures().bytes, 8 * block_bytes());
  EXPECT_GE(blocks_there(*store_, 40).size(), 5U);
  expect_all_whole();
}

TEST_F(Recovery, ASecondProcessIsRefused) {
  ASSERT_TRUE(open().ok());
  const auto second = Store::open(options_, std::make_unique<FaultyFiles>(disk_));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  save_and_wait_block(*store_, 0);
  expect_block(*store_, 0);
}

TEST_F(Recovery, NoStoreIsMadeWhereNoneIsWanted) {
  options_.create = false;
  EXPECT_EQ(open().code(), Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "a"));
  options_.create = true;
  std::filesystem::create_directory(directory_.path() / "a");
  std::ofstream(directory_.path() / "a/photo.jpg") << "x";
  EXPECT_THAT(open().message(), HasSubstr("is not empty"));
  options_.directories.clear();
  EXPECT_EQ(open().code(), Code::kInvalidArgument);
}

TEST_F(Recovery, AStoreThatWasHardlyBegunIsBegunAgain) {
  const auto a = directory_.path() / "a";
  std::filesystem::create_directory(a);
  std::ofstream(a / "lock") << "";
  std::ofstream(a / "kvlane-store.partial") << "kvlane st";
  std::filesystem::create_directory(a / "segments");
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(store_->opening().created);
  store_ = nullptr;
  // A mark and the beginning of a catalogue.
  std::ofstream(catalogue_path(a)) << "";
  ASSERT_TRUE(open().ok());
  EXPECT_FALSE(store_->opening().rebuilt);
  EXPECT_TRUE(store_->opening().notes.empty());
  save_and_wait_block(*store_, 0);
  expect_block(*store_, 0);
}

TEST_F(Recovery, MemoryServesReadsAndIsBounded) {
  options_.memory_bytes_max = 3 * block_bytes();
  ASSERT_TRUE(open().ok());
  for (int block = 0; block < 6; ++block) save_and_wait_block(*store_, block);
  EXPECT_EQ(store_->figures().memory_bytes, 3 * block_bytes());
  expect_block(*store_, 5);
  EXPECT_EQ(store_->figures().memory_reads, 2U);
  expect_block(*store_, 0);  // from the disk, and into memory
  EXPECT_EQ(store_->figures().memory_reads, 2U);
  expect_block(*store_, 0);
  EXPECT_EQ(store_->figures().memory_reads, 4U);
  EXPECT_EQ(store_->figures().memory_bytes, 3 * block_bytes());
  // Its disk may die meanwhile.
  disk_->crash();
  expect_block(*store_, 0);
}

TEST_F(Recovery, EncryptedExtentsNeedTheirKey) {
  AesKey key{};
  key[5] = std::byte{77};
  options_.key = key;
  ASSERT_TRUE(open().ok());
  save_and_wait_block(*store_, 0);
  expect_block(*store_, 0);
  const Bytes plain = content_of(0, 0, 5000);
  const std::string_view needle = as_text(ByteView(plain).first(64));
  EXPECT_EQ(as_text(only_segment().now).find(needle), std::string_view::npos);
  // Two extents of the same bytes look different.
  const auto head = store_->find(key_of(0))[0].head();
  EXPECT_TRUE(head.encrypted);
  ASSERT_TRUE(open().ok());
  expect_block(*store_, 0);
  EXPECT_TRUE(store_->verify(store_->find(key_of(0))[0]).ok());

  const Bytes exported = *store_->export_extent(store_->find(key_of(0))[0]);
  for (const bool none : {true, false}) {
    options_.key = none ? std::optional<AesKey>() : std::optional(AesKey{});
    ASSERT_TRUE(open().ok());
    const auto found = store_->all();
    ASSERT_EQ(found.size(), 2U);  // it is not damaged
    const Status status = read_and_compare(*store_, found[0]);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr("another key"));
    EXPECT_TRUE(store_->find(key_of(0)).empty());
    EXPECT_FALSE(store_->holds(key_of(0), 0, 1));
  }
  // The same block with this key takes their place.
  save_and_wait_block(*store_, 0);
  expect_block(*store_, 0);
  EXPECT_EQ(store_->all().size(), 2U);
  ASSERT_TRUE(open().ok());
  expect_block(*store_, 0);
  EXPECT_EQ(store_->all().size(), 2U);
  // And stays there when what the other one has encrypted comes back.
  auto draft = store_->import_draft(exported);
  ASSERT_TRUE(draft.ok()) << draft.status().message();
  store_->put(std::move(*draft), 0, [](const Status&) {});
  store_->flush();
  expect_block(*store_, 0);
}

TEST_F(Recovery, ExtentsMoveFromStoreToStore) {
  ASSERT_TRUE(open().ok());
  save_and_wait_block(*store_, 3);
  std::vector<Bytes> exported;
  for (const PinnedExtent& extent : store_->all()) {
    exported.push_back(*store_->export_extent(extent));
  }
  disk_ = std::make_shared<FaultyDisk>();
  options_.directories = {{directory_.path() / "other", 0}};
  ASSERT_TRUE(open().ok());
  for (const Bytes& bytes : exported) {
    auto draft = store_->import_draft(bytes);
    ASSERT_TRUE(draft.ok()) << draft.status().message();
    store_->put(std::move(*draft), 0, [](const Status& status) { EXPECT_TRUE(status.ok()); });
  }
  store_->flush();
  expect_block(*store_, 3);
  for (Bytes bytes : exported) {
    bytes[kExtentPageBytes + 9] ^= std::byte{1};
    EXPECT_EQ(store_->import_draft(bytes).status().code(), Code::kCorrupt);
    bytes.pop_back();
    EXPECT_EQ(store_->import_draft(bytes).status().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace kvlane
