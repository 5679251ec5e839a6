// Disks that are full, read-only or slow: the store evicts or refuses, keeps what it has, and works
// again afterwards.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <atomic>

#include "base/clock.h"
#include "store/directories.h"
#include "store/faulty_files.h"
#include "store/full_catalogue.h"
#include "store/paced_files.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using Kind = FaultyDisk::Kind;

class FullDisk : public ::testing::Test {
 protected:
  FullDisk() {
    options_.directories = {{directory_.path() / "a", 0}};
    options_.create = true;
    faults_.on_write = [this] { return refused_.load(); };
  }

  Status open_status() {
    store_ = nullptr;
    auto store = Store::open(options_, std::make_unique<FaultyFiles>(disk_));
    if (store.ok()) store_ = std::move(*store);
    return store.status();
  }
  void open() {
    const Status status = open_status();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // The first layers of a block.
  Status save(int block) { return save_and_wait(*store_, hidden_head(block, 0, 3)); }
  std::vector<int> there(int count) const {
    std::vector<int> blocks;
    for (int block = 0; block < count; ++block) {
      if (store_->holds(key_of(block), 0, 3)) blocks.push_back(block);
    }
    return blocks;
  }
  void expect_all_whole() {
    for (const PinnedExtent& extent : store_->all()) {
      const Status status = read_and_compare(*store_, extent);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  // Nothing is left over, and nothing was lost on the way.
  void expect_the_same_next_time() {
    const std::uint64_t extents = store_->figures().extents;
    open();
    EXPECT_TRUE(store_->opening().notes.empty());
    EXPECT_EQ(store_->figures().extents, extents);
    EXPECT_LE(disk_->bytes_kept(), store_->figures().bytes);
    expect_all_whole();
  }

  std::filesystem::path reserve() const { return directory_.path() / "a" / "reserve"; }
  bool reserved() const {
    struct stat info {};
    return ::stat(reserve().c_str(), &info) == 0 && info.st_blocks > 0;
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
  std::shared_ptr<FaultyDisk> disk_ = std::make_shared<FaultyDisk>();
  std::atomic<int> refused_ = SQLITE_OK;
  CatalogueFaults faults_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(FullDisk, TheOldestMakesRoomWithoutALimit) {
  disk_->bytes_max = 6 * head_bytes(3);
  open();
  for (int block = 0; block < 20; ++block) {
    const Status status = save(block);
    EXPECT_TRUE(status.ok()) << status.message();
    expect_all_whole();
  }
  EXPECT_EQ(there(20), (std::vector<int>{14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(store_->figures().evicted, 14U);
  EXPECT_EQ(store_->figures().bytes, 6 * head_bytes(3));
  EXPECT_EQ(store_->figures().segments, 1U);
  // Many at once.
  for (int block = 20; block < 40; ++block) {
    store_->put(draft_of(*store_, hidden_head(block, 0, 3)), 0, nullptr);
  }
  store_->flush();
  EXPECT_LE(there(40).size(), 6U);
  EXPECT_GE(there(40).size(), 1U);
  expect_all_whole();
  disk_->bytes_max = 0;
  const std::uint64_t evicted = store_->figures().evicted;
  for (int block = 40; block < 50; ++block) EXPECT_TRUE(save(block).ok());
  EXPECT_EQ(store_->figures().evicted, evicted);
  expect_the_same_next_time();
}

TEST_F(FullDisk, WhatIsPinnedStaysAndPutsAreRefused) {
  disk_->bytes_max = 3 * head_bytes(3);
  open();
  for (int block = 0; block < 3; ++block) ASSERT_TRUE(save(block).ok());
  {
    const auto pins = store_->all();
    const Status status = save(3);
    EXPECT_EQ(status.code(), Code::kExhausted);
    EXPECT_EQ(there(4), (std::vector<int>{0, 1, 2}));
    expect_all_whole();
    EXPECT_EQ(store_->figures().bytes, 3 * head_bytes(3));
  }
  EXPECT_TRUE(save(4).ok());
  EXPECT_EQ(there(5), (std::vector<int>{1, 2, 4}));
  expect_the_same_next_time();
}

TEST_F(FullDisk, AnotherDirectoryTakesWhatAFullOneDoesNot) {
  options_.directories.push_back({directory_.path() / "b", 0});
  open();
  const std::string a = (directory_.path() / "a").string();
  disk_->fault = [&a](Kind kind, int, const std::string& path) {
    return kind == Kind::kWrite && path.starts_with(a) ? exhausted("No space left") : Status();
  };
  for (int block = 0; block < 6; ++block) {
    EXPECT_TRUE(save_and_wait(*store_, hidden_head(block, 0, 3), block).ok());
  }
  EXPECT_EQ(store_->figures().evicted, 0U);
  expect_all_whole();
  disk_->fault = nullptr;
  EXPECT_TRUE(save_and_wait(*store_, hidden_head(6, 0, 3), 0).ok());
  expect_the_same_next_time();
}

TEST_F(FullDisk, FilesThatCannotBeMadeAreARefusalThatPasses) {
  options_.segment_bytes = 2 * head_bytes(3);
  open();
  disk_->fault = [this](Kind kind, int, const std::string&) {
    const bool full = kind == Kind::kCreate && disk_->files().size() >= 3;
    return full ? exhausted("cannot create: No space left on device") : Status();
  };
  int refused_in_turn = 0;
  for (int block = 0; block < 30; ++block) {
    refused_in_turn = save(block).ok() ? 0 : refused_in_turn + 1;
    EXPECT_LE(refused_in_turn, 2);  // until a whole segment is empty
    EXPECT_FALSE(there(30).empty());
    expect_all_whole();
  }
  disk_->fault = nullptr;
  expect_the_same_next_time();
}

TEST_F(FullDisk, ALimitBelowAPageIsOne) {
  options_.directories[0].bytes_max = 1;
  open();
  EXPECT_FALSE(save(0).ok());
  EXPECT_EQ(disk_->bytes_kept(), 0U);
}

TEST_F(FullDisk, TheCatalogueHasAReserve) {
  options_.directories[0].bytes_max = 4 * head_bytes(3);
  open();
  EXPECT_TRUE(reserved());
  for (int block = 0; block < 4; ++block) ASSERT_TRUE(save(block).ok());
  // Full as long as the reserve takes room; then there is enough for a transaction or two.
  faults_.on_write = [this] { return reserved() ? SQLITE_FULL : SQLITE_OK; };
  for (int block = 4; block < 12; ++block) {
    const Status status = save(block);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(there(12), (std::vector<int>{8, 9, 10, 11}));
  faults_.on_write = nullptr;
  EXPECT_TRUE(save(12).ok());
  EXPECT_TRUE(reserved());
  expect_the_same_next_time();
}

TEST_F(FullDisk, ACatalogueThatTakesNothingLosesNothing) {
  options_.directories[0].bytes_max = 4 * head_bytes(3);
  open();
  for (int block = 0; block < 4; ++block) ASSERT_TRUE(save(block).ok());
  refused_ = SQLITE_FULL;
  for (int block = 4; block < 10; ++block) {
    const Status status = save(block);
    EXPECT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), HasSubstr("catalogue"));
    // One was to go for the first of them, and none for those that follow.
    EXPECT_EQ(there(10), (std::vector<int>{1, 2, 3}));
    EXPECT_LE(disk_->bytes_kept(), 4 * head_bytes(3));
    expect_all_whole();
  }
  EXPECT_EQ(store_->figures().failed, 6U);
  refused_ = SQLITE_OK;
  for (int block = 10; block < 13; ++block) EXPECT_TRUE(save(block).ok());
  EXPECT_EQ(there(13), (std::vector<int>{3, 10, 11, 12}));
  EXPECT_LE(disk_->bytes_kept(), 4 * head_bytes(3));
  expect_the_same_next_time();
}

TEST_F(FullDisk, WhatWasToGoComesBackIfTheCatalogueNeverHeardOfIt) {
  options_.directories[0].bytes_max = 3 * head_bytes(3);
  open();
  for (int block = 0; block < 3; ++block) ASSERT_TRUE(save(block).ok());
  refused_ = SQLITE_FULL;
  EXPECT_FALSE(save(3).ok());
  store_ = nullptr;
  refused_ = SQLITE_OK;
  open();
  EXPECT_TRUE(store_->opening().notes.empty());
  EXPECT_EQ(there(4), (std::vector<int>{0, 1, 2}));
  expect_all_whole();
}

TEST_F(FullDisk, WhatBecomesReadOnlyGoesOnBeingRead) {
  options_.directories[0].bytes_max = 4 * head_bytes(3);
  open();
  for (int block = 0; block < 4; ++block) ASSERT_TRUE(save(block).ok());
  for (auto& [path, file] : disk_->files()) file.now[kExtentPageBytes] ^= std::byte{1};  // block 0
  disk_->fault = [](Kind kind, int, const std::string&) {
    return kind == Kind::kRead ? Status() : unavailable("cannot write: Read-only file system");
  };
  refused_ = SQLITE_READONLY;
  for (int block = 4; block < 8; ++block) {
    EXPECT_EQ(save(block).code(), Code::kUnavailable);
    for (const int old : {1, 2, 3}) {
      const auto found = store_->find(key_of(old));
      if (!found.empty()) {
        EXPECT_TRUE(read_and_compare(*store_, found[0]).ok());
      }
    }
  }
  EXPECT_EQ(there(8), (std::vector<int>{1, 2, 3}));
  disk_->fault = nullptr;
  refused_ = SQLITE_OK;
  for (int block = 8; block < 10; ++block) EXPECT_TRUE(save(block).ok());
  EXPECT_EQ(there(10), (std::vector<int>{2, 3, 8, 9}));
  expect_the_same_next_time();
}

TEST_F(FullDisk, DamageOnAReadOnlyDiskIsForgottenOnce) {
  open();
  for (int block = 0; block < 3; ++block) ASSERT_TRUE(save(block).ok());
  for (auto& [path, file] : disk_->files()) file.now[kExtentPageBytes] ^= std::byte{1};
  refused_ = SQLITE_READONLY;
  EXPECT_EQ(read_and_compare(*store_, store_->find(key_of(0))[0]).code(), Code::kCorrupt);
  EXPECT_EQ(save(3).code(), Code::kUnavailable);
  EXPECT_EQ(there(4), (std::vector<int>{1, 2}));
  refused_ = SQLITE_OK;
  EXPECT_TRUE(save(0).ok());  // in its own place of the catalogue
  EXPECT_EQ(there(4), (std::vector<int>{0, 1, 2}));
  expect_the_same_next_time();
}

TEST_F(FullDisk, ACatalogueThatCannotBeOpenedNowIsNotSetAside) {
  open();
  for (int block = 0; block < 3; ++block) ASSERT_TRUE(save(block).ok());
  const auto path = catalogue_path(directory_.path() / "a");
  faults_.on_open = [](std::string_view name) {
    return name.ends_with("-wal") ? SQLITE_CANTOPEN : SQLITE_OK;
  };
  const Status status = open_status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(path.string()));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".bad"));
  faults_.on_open = nullptr;
  open();
  EXPECT_FALSE(store_->opening().rebuilt);
  EXPECT_EQ(there(3), (std::vector<int>{0, 1, 2}));
}

TEST_F(FullDisk, ASlowDiskRefusesDraftsAndHoldsUpNobody) {
  options_.saving_bytes_max = 4 * head_bytes(3);
  open();
  for (int block = 0; block < 4; ++block) ASSERT_TRUE(save(block).ok());
  store_ = nullptr;
  // A write takes 20 ms, a read nothing.
  const double rate = static_cast<double>(head_bytes(3)) / 0.02;
  auto slow = Store::open(options_, paced_files(std::make_unique<FaultyFiles>(disk_),
                                                {.write_bytes_per_second = rate}, 1));
  ASSERT_TRUE(slow.ok());
  store_ = std::move(*slow);
  std::atomic<int> saved = 0;
  int put = 0;
  int refused = 0;
  int read_meanwhile = 0;
  for (int block = 10; block < 40; ++block) {
    const ExtentHead head = hidden_head(block, 0, 3);
    auto draft = store_->draft(head);
    if (!draft.ok()) {
      EXPECT_EQ(draft.status().code(), Code::kExhausted);
      EXPECT_THAT(draft.status().message(), HasSubstr("saving is behind"));
      refused += 1;
    } else {
      store_->put(filled(std::move(*draft)), 0,
                  [&saved](const Status& status) { saved += status.ok(); });
      put += 1;
    }
    EXPECT_TRUE(read_and_compare(*store_, store_->find(key_of(block % 4))[0]).ok());
    read_meanwhile += saved < put;
  }
  EXPECT_GT(refused, 0);
  // Who was refused found four writes waiting, which take 80 ms: reads do not wait for them. Half,
  // as a busy machine may stop this thread for as long.
  EXPECT_GE(2 * read_meanwhile, refused);
  EXPECT_EQ(store_->figures().refused, static_cast<std::uint64_t>(refused));
  store_->flush();
  EXPECT_EQ(saved, put);
  expect_all_whole();
}

}  // namespace
}  // namespace kvlane
