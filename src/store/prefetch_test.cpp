// Prefetching: what was asked for early comes from memory later, within limits, and is checked as
// any other read.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>

#include "store/directories.h"
#include "store/faulty_files.h"
#include "store/paced_files.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using Kind = FaultyDisk::Kind;

// Blocks 0 ... `blocks` - 1 of two extents each, on a disk that counts its reads; none in memory.
class Prefetch : public ::testing::Test {
 protected:
  Prefetch() {
    options_.directories = {{directory_.path() / "a", 0}};
    options_.create = true;
    disk_->fault = [this](Kind kind, int, const std::string&) {
      reads_ += kind == Kind::kRead;
      return kind == Kind::kRead ? fault_ : Status();
    };
  }

  void open(std::uint64_t memory_bytes, int blocks, Seconds latency = Seconds(0)) {
    options_.memory_bytes_max = 0;
    reopen(Seconds(0));
    for (int block = 0; block < blocks; ++block) save_and_wait_block(*store_, block);
    options_.memory_bytes_max = memory_bytes;
    reopen(latency);
    EXPECT_EQ(store_->figures().memory_bytes, 0U);
    reads_ = 0;
  }
  void reopen(Seconds latency) {
    store_ = nullptr;
    auto store = Store::open(
        options_, paced_files(std::make_unique<FaultyFiles>(disk_), {.latency = latency}, 1));
    ASSERT_TRUE(store.ok()) << store.status().message();
    store_ = std::move(*store);
  }

  void prefetch(int block) { store_->prefetch(store_->find(key_of(block))); }
  void await(std::uint64_t prefetched) const {
    while (store_->figures().prefetched < prefetched) std::this_thread::yield();
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
  std::atomic<int> reads_ = 0;
  Status fault_;
  std::shared_ptr<FaultyDisk> disk_ = std::make_shared<FaultyDisk>();
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(Prefetch, ReadsComeFromMemoryAfterwards) {
  open(16 * block_bytes(), 4);
  for (int block = 0; block < 3; ++block) prefetch(block);
  await(6);
  EXPECT_EQ(reads_, 6);
  EXPECT_EQ(store_->figures().memory_bytes, 3 * block_bytes());
  EXPECT_EQ(store_->figures().reads, 0U);
  for (int block = 0; block < 3; ++block) expect_block(*store_, block);
  EXPECT_EQ(reads_, 6);
  EXPECT_EQ(store_->figures().memory_reads, 6U);
  expect_block(*store_, 3);
  EXPECT_EQ(reads_, 8);
  // What is there is not read again.
  for (int block = 0; block < 4; ++block) prefetch(block);
  EXPECT_EQ(reads_, 8);
}

TEST_F(Prefetch, WhatIsComingIsReadOnce) {
  open(16 * block_bytes(), 2, Seconds(0.05));
  prefetch(0);
  prefetch(0);
  EXPECT_EQ(store_->figures().memory_bytes, block_bytes());  // counts already
  expect_block(*store_, 0);                                  // waits for it
  EXPECT_EQ(reads_, 2);
  EXPECT_EQ(store_->figures().prefetched, 2U);
  EXPECT_EQ(store_->figures().memory_reads, 2U);
  // Parts of what is coming, too.
  prefetch(1);
  Bytes parts;
  EXPECT_TRUE(read_parts(*store_, store_->find(key_of(1))[0], 1, 1, parts).ok());
  EXPECT_EQ(parts, content_of(1, 1, 5000));
  await(4);
  EXPECT_EQ(reads_, 4);
}

TEST_F(Prefetch, AHalfOfTheTierIsForWhatNobodyHasReadYet) {
  open(4 * block_bytes(), 8);
  for (int block = 0; block < 8; ++block) prefetch(block);
  await(4);
  EXPECT_EQ(reads_, 4);
  EXPECT_EQ(store_->figures().memory_bytes, 2 * block_bytes());
  // Once they are read, others may come; what was read stays as long as there is room.
  expect_block(*store_, 0);
  expect_block(*store_, 1);
  for (int block = 0; block < 8; ++block) prefetch(block);
  await(8);
  EXPECT_EQ(reads_, 8);
  EXPECT_EQ(store_->figures().memory_bytes, 4 * block_bytes());
  for (int block = 0; block < 4; ++block) expect_block(*store_, block);
  EXPECT_EQ(reads_, 8);
  // What others have driven out counts no longer.
  prefetch(4);
  prefetch(5);
  await(12);
  for (int block = 8; block < 14; ++block) save_and_wait_block(*store_, block);
  EXPECT_EQ(store_->figures().memory_bytes, 4 * block_bytes());
  prefetch(6);
  prefetch(7);
  await(16);
  EXPECT_EQ(store_->figures().memory_bytes, 4 * block_bytes());
}

TEST_F(Prefetch, WhatHasNoRoomIsLeftAlone) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, head_bytes(2) * 2 - 1}) {
    open(bytes, 1);
    prefetch(0);
    expect_block(*store_, 0);
    EXPECT_EQ(reads_, 2);
    EXPECT_EQ(store_->figures().prefetched, 0U);
    EXPECT_LE(store_->figures().memory_bytes, bytes);
  }
}

TEST_F(Prefetch, WhatIsBeingPrefetchedDoesNotPushTheTierBeyondItsLimit) {
  open(2 * head_bytes(3), 4, Seconds(0.03));
  prefetch(0);  // of which one extent fits into a half
  prefetch(1);
  std::uint64_t most = 0;
  for (int block = 4; block < 8; ++block) {
    save_and_wait_block(*store_, block);
    most = std::max(most, store_->figures().memory_bytes);
  }
  await(1);
  EXPECT_GT(most, head_bytes(3));
  EXPECT_LE(most, 2 * head_bytes(3));
  EXPECT_LE(store_->figures().memory_bytes, 2 * head_bytes(3));
}

TEST_F(Prefetch, DamageIsFoundAndForgotten) {
  open(16 * block_bytes(), 2);
  disk_->files().begin()->second.now[3 * kExtentPageBytes + 100] ^= std::byte{1};
  prefetch(0);
  await(1);
  while (store_->figures().damaged == 0) std::this_thread::yield();
  EXPECT_FALSE(store_->holds(key_of(0), 0, 3));
  EXPECT_TRUE(store_->holds(key_of(0), 3, 2));
  EXPECT_EQ(store_->figures().memory_bytes, head_bytes(2));
  EXPECT_EQ(store_->figures().damaged, 1U);
  ASSERT_TRUE(save_and_wait(*store_, hidden_head(0, 0, 3)).ok());
  expect_block(*store_, 0);
}

TEST_F(Prefetch, WhoWaitsHearsOfDamageOnce) {
  open(16 * block_bytes(), 1, Seconds(0.03));
  disk_->files().begin()->second.now[3 * kExtentPageBytes + 100] ^= std::byte{1};
  const auto found = store_->find(key_of(0));
  store_->prefetch(found);
  const Status status = read_and_compare(*store_, found[0]);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("wrong checksum"));
  EXPECT_EQ(store_->figures().damaged, 1U);
  EXPECT_TRUE(read_and_compare(*store_, found[1]).ok());
}

TEST_F(Prefetch, OtherFailuresAreLeftToTheRead) {
  open(16 * block_bytes(), 1);
  fault_ = unavailable("cannot read: Input/output error");
  prefetch(0);
  while (store_->figures().memory_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(reads_, 2);
  EXPECT_EQ(store_->figures().prefetched + store_->figures().damaged, 0U);
  fault_ = {};
  expect_block(*store_, 0);
  EXPECT_EQ(reads_, 4);
}

TEST_F(Prefetch, EncryptedExtentsStaySoInMemory) {
  options_.key = AesKey{};
  open(16 * block_bytes(), 2);
  prefetch(0);
  await(2);
  expect_block(*store_, 0);
  expect_block(*store_, 0);
  EXPECT_EQ(reads_, 2);
}

TEST_F(Prefetch, TheStoreMayGoMeanwhile) {
  open(16 * block_bytes(), 4, Seconds(0.02));
  for (int block = 0; block < 4; ++block) prefetch(block);
  store_ = nullptr;
  EXPECT_EQ(reads_, 8);
}

TEST_F(Prefetch, WhatIsComingIsNotEvictedAndMayBeForgotten) {
  options_.directories[0].bytes_max = 2 * block_bytes();
  open(16 * block_bytes(), 2, Seconds(0.05));
  prefetch(0);
  save_and_wait_block(*store_, 2);  // block 1 goes, though it was saved later
  EXPECT_EQ(blocks_there(*store_, 3), (std::vector<int>{0, 2}));
  await(2);
  expect_block(*store_, 0);
  const auto found = store_->find(key_of(2));
  store_->forget(found[0]);
  store_->prefetch(found);  // of which one is gone
  EXPECT_FALSE(store_->holds(key_of(2), 0, 3));
}

// Threads that prefetch, read, save and forget what others do the same with.
TEST_F(Prefetch, AllAtOnce) {
  options_.directories[0].bytes_max = 10 * block_bytes();
  open(5 * block_bytes(), 12, Seconds(0.0005));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int n = 0; n < 60; ++n) {
        const int block = (n * 7 + t * 5) % 12;
        prefetch((block + 3) % 12);
        for (const PinnedExtent& extent : store_->find(key_of(block))) {
          const Status status = read_and_compare(*store_, extent);
          // Others may have deleted it meanwhile.
          EXPECT_TRUE(status.ok() || status.code() == Code::kCorrupt) << status.message();
        }
        if (n % 8 == t) {
          for (const PinnedExtent& extent : store_->find(key_of(block))) store_->forget(extent);
        }
        save_block(*store_, block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store_->flush();
  EXPECT_LE(store_->figures().memory_bytes, 5 * block_bytes());
  EXPECT_GT(store_->figures().prefetched, 0U);
  EXPECT_LE(store_->figures().bytes, 10 * block_bytes());
}

}  // namespace
}  // namespace kvlane
