// The store: what is saved is found and read, by this process and the next; limits, pins, eviction,
// garbage, encryption.
// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <latch>

#include "store/directories.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() { options_.directories = {{directory_.path() / "a", 0}}; }

  void open() {
    store_ = nullptr;
    options_.create = true;
    auto store = Store::open(
        options_, std::move(*open_store_files(
                      {.devices = static_cast<int>(options_.directories.size()), .depth = 4})));
    ASSERT_TRUE(store.ok()) << store.status().message();
    store_ = std::move(*store);
  }
  Status open_status() {
    store_ = nullptr;
    auto files = open_store_files({.devices = static_cast<int>(options_.directories.size())});
    return Store::open(options_, std::move(*files)).status();
  }
  std::filesystem::path folder(const char* name = "a") const { return directory_.path() / name; }
  std::size_t segment_files(const char* name = "a") const {
    const auto all = std::filesystem::directory_iterator(segments_path(folder(name)));
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, WhatIsSavedIsFoundAndRead) {
  open();
  EXPECT_TRUE(store_->opening().created);
  for (int block = 0; block < 5; ++block) save_block(*store_, block);
  store_->flush();
  for (int block = 0; block < 5; ++block) expect_block(*store_, block);
  EXPECT_TRUE(store_->find(key_of(5)).empty());
  const StoreFigures figures = store_->figures();
  EXPECT_EQ(figures.saved, 10U);
  EXPECT_EQ(figures.extents, 10U);
  EXPECT_EQ(figures.bytes, figures.saved_bytes);
  EXPECT_EQ(figures.failed + figures.refused + figures.damaged, 0U);
}

// Others may put one extent after the other meanwhile.
TEST_F(StoreTest, FlushWaitsForWhatWasPutBeforeAlone) {
  open();
  std::atomic<int> block = 0;
  std::atomic<bool> more = true;
  std::function<void()> put_next = [&] {
    store_->put(draft_of(*store_, hidden_head(block++, 0, 3)), 0, [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      if (more) put_next();
    });
  };
  put_next();
  store_->flush();
  EXPECT_TRUE(store_->holds(key_of(0), 0, 3));
  more = false;
  store_->flush();
  store_->flush();  // also for the one that a callback was about to put
  EXPECT_EQ(store_->figures().extents, static_cast<std::uint64_t>(block));
}

TEST_F(StoreTest, TheNextProcessFindsIt) {
  open();
  for (int block = 0; block < 3; ++block) save_block(*store_, block);
  open();
  EXPECT_FALSE(store_->opening().created);
  EXPECT_TRUE(store_->opening().notes.empty());
  for (int block = 0; block < 3; ++block) expect_block(*store_, block);
  save_block(*store_, 3);
  store_->flush();
  open();
  expect_block(*store_, 3);
}

TEST_F(StoreTest, LayersAreFoundAcrossExtents) {
  open();
  save_block(*store_, 0);  // layers 0 to 2 and 3 to 4
  store_->flush();
  EXPECT_TRUE(store_->holds(key_of(0), 0, 5));
  EXPECT_TRUE(store_->holds(key_of(0), 2, 2));
  EXPECT_FALSE(store_->holds(key_of(0), 0, 6));
  EXPECT_FALSE(store_->holds(key_of(0), 5, 1));
  EXPECT_FALSE(store_->holds(key_of(1), 0, 1));
  BlockKey other = key_of(0);
  other.kind = ExtentKind::kKv;
  EXPECT_FALSE(store_->holds(other, 0, 1));
  other = key_of(0);
  other.shards = 2;
  EXPECT_FALSE(store_->holds(other, 0, 1));
}

TEST_F(StoreTest, PartsAreReadAlone) {
  open();
  save_block(*store_, 7);
  store_->flush();
  const auto found = store_->find(key_of(7));
  ASSERT_EQ(found.size(), 2U);
  const ExtentHead& head = found[0].head();
  for (int first = 0; first < head.layers(); ++first) {
    for (int count = 1; first + count <= head.layers(); ++count) {
      Bytes parts;
      ASSERT_TRUE(read_parts(*store_, found[0], first, count, parts).ok());
      Bytes expected;
      for (int p = first; p < first + count; ++p) {
        const Bytes one = content_of(7, head.layer + p, head.parts[std::size_t(p)].bytes());
        expected.insert(expected.end(), one.begin(), one.end());
      }
      EXPECT_EQ(parts, expected) << first << " " << count;
    }
  }
}

TEST_F(StoreTest, WrongReadsAreRefused) {
  open();
  save_block(*store_, 0);
  store_->flush();
  const auto found = store_->find(key_of(0));
  const PageBuffer memory = std::move(*PageBuffer::allocate(1 << 20));
  const std::span<std::byte> all(memory.data(), memory.bytes());
  const std::vector<ExtentRead> reads = {{found[0], -1, 1, all},
                                         {found[0], 0, 0, all},
                                         {found[0], 2, 2, all},
                                         {found[0], 0, 1, all.first(4095)},
                                         {found[0], 0, 1, all.subspan(8)}};
  std::latch left(5);
  store_->read(reads, [&](std::size_t, const Status& status) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    left.count_down();
  });
  left.wait();
}

TEST_F(StoreTest, WhatIsThereIsNotWrittenAgain) {
  open();
  save_block(*store_, 0);
  store_->flush();
  const std::uint64_t bytes = store_->figures().bytes;
  EXPECT_TRUE(save_and_wait(*store_, hidden_head(0, 0, 3)).ok());
  EXPECT_TRUE(save_and_wait(*store_, hidden_head(0, 2, 2)).ok());  // of both
  EXPECT_EQ(store_->figures().present, 2U);
  EXPECT_EQ(store_->figures().bytes, bytes);
  // Other extents of the same layers are no such thing.
  const Status status = save_and_wait(*store_, hidden_head(0, 4, 2));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("other extents"));
  EXPECT_EQ(store_->figures().failed, 1U);
}

TEST_F(StoreTest, TwinsOfOneGroupAreSavedOnce) {
  open();
  std::atomic<int> good = 0;
  for (int i = 0; i < 20; ++i) {
    store_->put(draft_of(*store_, hidden_head(0, 0, 3)), 0,
                [&](const Status& status) { good += status.ok(); });
  }
  store_->flush();
  EXPECT_EQ(good, 20);
  EXPECT_EQ(store_->figures().extents, 1U);
  EXPECT_EQ(store_->figures().saved + store_->figures().present, 20U);
}

TEST_F(StoreTest, DraftsAreBounded) {
  options_.saving_bytes_max = 100 << 10;
  open();
  const ExtentHead head = hidden_head(0, 0, 3);
  std::vector<ExtentDraft> drafts;
  for (;;) {
    auto draft = store_->draft(head);
    if (!draft.ok()) {
      EXPECT_EQ(draft.status().code(), Code::kExhausted);
      break;
    }
    drafts.push_back(std::move(*draft));
  }
  EXPECT_EQ(drafts.size(), options_.saving_bytes_max / drafts[0].head().extent_bytes());
  EXPECT_EQ(store_->figures().refused, 1U);
  drafts.pop_back();
  EXPECT_TRUE(store_->draft(head).ok());
  drafts.clear();
  // Saved drafts give their memory back too.
  for (int block = 0; block < 20; ++block) {
    EXPECT_TRUE(save_and_wait(*store_, hidden_head(block, 0, 3)).ok());
  }
}

TEST_F(StoreTest, BadHeadsAreRefused) {
  open();
  ExtentHead head = hidden_head(0, 0, 3);
  head.position = 1;
  EXPECT_EQ(store_->draft(head).status().code(), Code::kInvalidArgument);
  head.parts.clear();
  EXPECT_EQ(store_->draft(head).status().code(), Code::kInvalidArgument);
}

TEST_F(StoreTest, TheLongestUnusedGoesFirst) {
  options_.directories[0].bytes_max = 10 * block_bytes();
  open();
  for (int block = 0; block < 10; ++block) save_and_wait_block(*store_, block);
  EXPECT_EQ(store_->find(key_of(2)).size(), 2U);  // used
  for (int block = 10; block < 14; ++block) save_and_wait_block(*store_, block);
  EXPECT_EQ(blocks_there(*store_, 14), (std::vector<int>{2, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(store_->figures().evicted, 8U);
  EXPECT_LE(store_->figures().bytes, options_.directories[0].bytes_max);
  // The order of use survives.
  EXPECT_EQ(store_->find(key_of(5)).size(), 2U);
  open();
  for (int block = 14; block < 17; ++block) save_and_wait_block(*store_, block);
  EXPECT_EQ(blocks_there(*store_, 17), (std::vector<int>{2, 5, 9, 10, 11, 12, 13, 14, 15, 16}));
}

TEST_F(StoreTest, PinnedExtentsStay) {
  options_.directories[0].bytes_max = 4 * block_bytes();
  open();
  for (int block = 0; block < 4; ++block) save_and_wait_block(*store_, block);
  {
    std::vector<PinnedExtent> pins = store_->find(key_of(0));
    for (PinnedExtent& pin : store_->find(key_of(1))) pins.push_back(pin);
    for (int block = 4; block < 8; ++block) save_and_wait_block(*store_, block);
    EXPECT_EQ(blocks_there(*store_, 8), (std::vector<int>{0, 1, 6, 7}));
    for (PinnedExtent& pin : store_->find(key_of(6))) pins.push_back(pin);
    for (PinnedExtent& pin : store_->find(key_of(7))) pins.push_back(pin);
    const Status status = save_and_wait(*store_, hidden_head(8, 0, 3));
    EXPECT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), HasSubstr("leaves no room"));
  }
  save_and_wait_block(*store_, 8);
  EXPECT_FALSE(store_->find(key_of(8)).empty());
}

TEST_F(StoreTest, AnExtentLargerThanTheLimitIsRefused) {
  options_.directories[0].bytes_max = 8192;
  open();
  EXPECT_EQ(save_and_wait(*store_, hidden_head(0, 0, 3)).code(), Code::kExhausted);
  EXPECT_EQ(store_->figures().evicted, 0U);
}

TEST_F(StoreTest, EvictionGivesTheDisksBytesBack) {
  options_.directories[0].bytes_max = 6 * block_bytes();
  options_.segment_bytes = 3 * block_bytes();
  open();
  for (int block = 0; block < 60; ++block) save_and_wait_block(*store_, block);
  store_->flush();
  EXPECT_LE(disk_bytes(segments_path(folder())), 6 * block_bytes() + 65536);
  EXPECT_LE(segment_files(), 4U);
  for (const int block : blocks_there(*store_, 60)) expect_block(*store_, block);
}

TEST_F(StoreTest, GarbageCollectionMergesSegments) {
  options_.segment_bytes = 8 * block_bytes();
  for (int process = 0; process < 6; ++process) {
    open();
    save_and_wait_block(*store_, process);
  }
  EXPECT_EQ(segment_files(), 6U);
  const auto collected = store_->collect_garbage();
  ASSERT_TRUE(collected.ok()) << collected.status().message();
  EXPECT_EQ(collected->segments_gone, 5U);
  EXPECT_EQ(collected->moved, 10U);
  EXPECT_LE(segment_files(), 2U);
  for (int block = 0; block < 6; ++block) expect_block(*store_, block);
  EXPECT_EQ(store_->figures().bytes, 6 * block_bytes());
  open();
  for (int block = 0; block < 6; ++block) expect_block(*store_, block);
  // Where there is nothing to gain nothing is moved.
  EXPECT_TRUE(store_->collect_garbage().ok());
  open();
  EXPECT_EQ(store_->collect_garbage()->moved, 0U);
}

TEST_F(StoreTest, SequencesAreSpreadOverDirectories) {
  options_.directories = {{folder("a"), 0}, {folder("b"), 0}, {folder("c"), 0}};
  open();
  for (int block = 0; block < 9; ++block) {
    EXPECT_TRUE(save_and_wait(*store_, hidden_head(block, 0, 3), block).ok());
  }
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(disk_bytes(segments_path(folder(name))), 3 * head_bytes(3)) << name;
  }
  // In any order, and with a new one.
  options_.directories = {{folder("c"), 0}, {folder("d"), 0}, {folder("a"), 0}, {folder("b"), 0}};
  open();
  EXPECT_EQ(store_->figures().extents, 9U);
  EXPECT_TRUE(save_and_wait(*store_, hidden_head(9, 0, 3), 3).ok());
  EXPECT_EQ(disk_bytes(segments_path(folder("d"))), head_bytes(3));
}

TEST_F(StoreTest, DirectoriesThatDoNotBelongTogetherAreRefused) {
  options_.directories = {{folder("a"), 0}, {folder("b"), 0}};
  open();
  store_ = nullptr;
  const auto expect = [&](std::vector<StoreDirectory> directories, const char* words) {
    options_.directories = std::move(directories);
    const Status status = open_status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << words;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  expect({{folder("a"), 0}}, "2 directories, of which 1");
  expect({{folder("b"), 0}}, "directory 0 of the store is missing");
  expect({{folder("a"), 0}, {folder("c"), 0}}, "2 directories, of which 1");
}

}  // namespace
}  // namespace kvlane
