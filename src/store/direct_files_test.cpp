// Reads to memory of a device by files and by the store, by a library that tests provide: what
// comes is what lies there, damage included, and all else goes through the host as before.
// SPDX-License-Identifier: Apache-2.0
#include "store/direct_files.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <future>
#include <numeric>

#include "format/checksum.h"
#include "gpu/cufile_abi.h"
#include "gpu/fake_cufile.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

namespace cufile = gpu::cufile;
using ::testing::HasSubstr;

// "Device" memory is the host's here.
class DirectFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!reads_past_caches(directory_.path())) GTEST_SKIP() << "no direct reads in /tmp here";
    memory_ = std::move(*PageBuffer::allocate(64 * kFileAlignment));
    std::memset(memory_.data(), 0xFF, memory_.bytes());
    open_storage();
  }
  ~DirectFilesTest() override { fake_.reset(); }

  void open_storage() {
    storage_ = std::move(*gpu::DirectStorage::open([] { return Status(); }, kFakeCufile));
    taken_ = std::move(*storage_->take_memory({memory_.data(), memory_.bytes()}));
  }
  std::unique_ptr<StoreFiles> open_files() {
    const FileOptions options{.devices = 2, .depth = 4};
    return direct_files(std::move(*open_store_files(options)), storage_, options);
  }
  std::unique_ptr<Store> open_store(StoreOptions options = {}) {
    options.create = true;
    for (const char* name : {"a", "b"})
      options.directories.push_back({directory_.path() / name, 0});
    auto store = Store::open(options, open_files());
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(*store);
  }
  static Status read_and_wait(StoreFiles& files, StoreFile& file, std::uint64_t offset,
                              std::span<std::byte> memory) {
    std::promise<Status> outcome;
    files.submit({.file = &file,
                  .offset = offset,
                  .memory = memory,
                  .done = [&](const Status& status) { outcome.set_value(status); },
                  .to_device = true});
    return outcome.get_future().get();
  }
  std::span<std::byte> pages(std::size_t first, std::size_t count) const {
    return {memory_.data() + first * kFileAlignment, count * kFileAlignment};
  }
  // Parts `first` and behind it of an extent, unchecked.
  Status read_unchecked(Store& store, const PinnedExtent& extent, int first, int count) const {
    const std::size_t bytes = extent_read_bytes(extent.head(), first, count);
    std::promise<Status> outcome;
    store.read({{extent, first, count, pages(0, bytes / kFileAlignment), true}},
               [&](std::size_t, const Status& status) { outcome.set_value(status); });
    return outcome.get_future().get();
  }
  bool is_content(const ExtentHead& head, int part, std::span<const std::byte> bytes) const {
    const Bytes content = content_of(block_of(head), head.layer + part, head.parts[part].bytes());
    return std::equal(content.begin(), content.end(), bytes.begin());
  }

  FakeCuFile& fake_ = fake_cufile();
  const TemporaryDirectory directory_;
  PageBuffer memory_;
  std::shared_ptr<gpu::DirectStorage> storage_;
  std::unique_ptr<gpu::DirectStorage::Memory> taken_;
};

TEST_F(DirectFilesTest, WhatWasWrittenComesToTheDevice) {
  const auto files = open_files();
  EXPECT_EQ(files->direct_storage(), storage_.get());
  EXPECT_THAT(files->description(), HasSubstr("to devices by cuFile 1.14"));
  const auto file = std::move(*files->open(directory_.path() / "x", FileAccess::kCreate, 1));
  ASSERT_TRUE(files->reads_to_device(*file));
  const PageBuffer out = std::move(*PageBuffer::allocate(8 * kFileAlignment));
  for (std::size_t i = 0; i < out.bytes(); ++i) {
    out.data()[i] = static_cast<std::byte>(i * 31 + i / kFileAlignment);
  }
  ASSERT_TRUE(transfer_and_wait(*files, *file, true, 0, {out.data(), out.bytes()}).ok());
  // Reads that end early go on.
  fake_.outcome = [](int number, std::size_t bytes) {
    return static_cast<ssize_t>(number % 2 == 0 ? kFileAlignment : bytes);
  };
  ASSERT_TRUE(read_and_wait(*files, *file, kFileAlignment, pages(3, 5)).ok());
  EXPECT_EQ(std::memcmp(pages(3, 5).data(), out.data() + kFileAlignment, 5 * kFileAlignment), 0);
  EXPECT_EQ(fake_.reads, 2);
  fake_.outcome = nullptr;
  // And the host's way is there.
  const PageBuffer in = std::move(*PageBuffer::allocate(kFileAlignment));
  ASSERT_TRUE(
      transfer_and_wait(*files, *file, false, 2 * kFileAlignment, {in.data(), kFileAlignment})
          .ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data() + 2 * kFileAlignment, kFileAlignment), 0);
  EXPECT_EQ(read_and_wait(*files, *file, 7 * kFileAlignment, pages(0, 2)).code(), Code::kCorrupt);
}

TEST_F(DirectFilesTest, ManyReadsAreUnderWay) {
  const auto files = open_files();
  const auto file = std::move(*files->open(directory_.path() / "x", FileAccess::kCreate, 0));
  const PageBuffer out = std::move(*PageBuffer::allocate(64 * kFileAlignment));
  std::iota(reinterpret_cast<std::uint32_t*>(out.data()),
            reinterpret_cast<std::uint32_t*>(out.data() + out.bytes()), 7U);
  ASSERT_TRUE(transfer_and_wait(*files, *file, true, 0, {out.data(), out.bytes()}).ok());
  std::atomic<int> left = 64;
  for (std::size_t page = 0; page < 64; ++page) {
    files->submit({.file = file.get(),
                   .offset = page * kFileAlignment,
                   .memory = pages(page, 1),
                   .done =
                       [&left](const Status& status) {
                         EXPECT_TRUE(status.ok()) << status.message();
                         left -= 1;
                         left.notify_one();
                       },
                   .to_device = true});
  }
  for (int n = left; n > 0; n = left) left.wait(n);
  EXPECT_EQ(std::memcmp(memory_.data(), out.data(), out.bytes()), 0);
}

TEST_F(DirectFilesTest, FilesThatAreRefusedAreReadThroughTheHost) {
  const auto files = open_files();
  const auto create = [&](const char* name) {
    return std::move(*files->open(directory_.path() / name, FileAccess::kCreate, 0));
  };
  fake_.file_error = cufile::kFileRefused;
  const auto refused = create("x");
  EXPECT_FALSE(files->reads_to_device(*refused));
  EXPECT_EQ(read_and_wait(*files, *refused, 0, pages(0, 1)).code(), Code::kInvalidArgument);
  // A disk that fails may do better the next time; a library that refuses will not.
  fake_.file_error = 0;
  const auto file = create("y");
  fake_.outcome = [](int, std::size_t) { return -1; };
  EXPECT_EQ(read_and_wait(*files, *file, 0, pages(0, 1)).code(), Code::kUnavailable);
  EXPECT_TRUE(files->reads_to_device(*file));
  fake_.outcome = [](int, std::size_t) { return -cufile::kFileRefused; };
  EXPECT_EQ(read_and_wait(*files, *file, 0, pages(0, 1)).code(), Code::kUnavailable);
  EXPECT_FALSE(files->reads_to_device(*file));
  EXPECT_EQ(fake_.files, 1);
}

TEST_F(DirectFilesTest, AStoreReadsPartsToADevice) {
  const auto store = open_store();
  ASSERT_EQ(store->direct_storage(), storage_.get());
  save_and_wait_block(*store, 1);
  const auto extents = store->find(key_of(1));
  ASSERT_EQ(extents.size(), 2U);
  EXPECT_TRUE(store->reads_to_device(extents[0]));
  ASSERT_TRUE(read_unchecked(*store, extents[0], 1, 2).ok());
  const ExtentHead& head = extents[0].head();
  EXPECT_TRUE(is_content(head, 1, pages(0, 2)));
  EXPECT_TRUE(is_content(head, 2, pages(head.parts[2].page - head.parts[1].page, 2)));
  EXPECT_EQ(store->figures().reads, 1U);
  EXPECT_EQ(store->figures().device_reads, 1U);
}

// What is named unchecked is: who asked finds the damage, and tells it.
TEST_F(DirectFilesTest, DamageArrivesUntilItIsTold) {
  const auto store = open_store();
  save_and_wait_block(*store, 1);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
    if (entry.path().extension() != ".seg") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kFileAlignment + 100);
    file.put('x').put('y').put('z');
  }
  const PinnedExtent extent = store->find(key_of(1))[0];
  ASSERT_TRUE(read_unchecked(*store, extent, 0, 1).ok());
  EXPECT_FALSE(is_content(extent.head(), 0, pages(0, 2)));
  const auto bytes = pages(0, 2).first(extent.head().parts[0].bytes());
  EXPECT_NE(xxh3_64(bytes), extent.head().parts[0].checksum);
  EXPECT_EQ(store->figures().damaged, 0U);
  store->damaged(extent);
  EXPECT_EQ(store->figures().damaged, 1U);
  EXPECT_EQ(store->find(key_of(1)).size(), 1U);
}

TEST_F(DirectFilesTest, WhatIsInMemoryOrEncryptedComesFromThere) {
  {
    const auto store = open_store({.memory_bytes_max = std::uint64_t{1} << 20});
    save_and_wait_block(*store, 1);
    const PinnedExtent extent = store->find(key_of(1))[0];
    Bytes parts;
    ASSERT_TRUE(read_parts(*store, extent, 0, 3, parts).ok());  // or since it was saved
    EXPECT_FALSE(store->reads_to_device(extent));
  }
  {
    StoreOptions options{.key = AesKey{}};
    const auto store = open_store(options);
    save_and_wait_block(*store, 2);
    const PinnedExtent sealed = store->find(key_of(2))[0];
    EXPECT_FALSE(store->reads_to_device(sealed));
    EXPECT_EQ(read_unchecked(*store, sealed, 0, 1).code(), Code::kInvalidArgument);
    EXPECT_TRUE(store->reads_to_device(store->find(key_of(1))[0]));
  }
}

TEST_F(DirectFilesTest, FilesThatEndTooEarlyAreDamaged) {
  const auto store = open_store();
  save_and_wait_block(*store, 1);
  const PinnedExtent extent = store->find(key_of(1))[0];
  fake_.outcome = [](int, std::size_t) { return 0; };
  EXPECT_EQ(read_unchecked(*store, extent, 0, 1).code(), Code::kCorrupt);
  EXPECT_EQ(store->figures().damaged, 1U);
  EXPECT_EQ(store->find(key_of(1)).size(), 1U);
}

// A store without a way to devices is asked nothing of it.
TEST(StoreWithoutDirectFiles, HasNoWayToDevices) {
  const TemporaryDirectory directory;
  StoreOptions options{.create = true};
  options.directories.push_back({directory.path(), 0});
  const auto store = std::move(*Store::open(options, std::move(*open_store_files({}))));
  save_and_wait_block(*store, 1);
  EXPECT_EQ(store->direct_storage(), nullptr);
  EXPECT_FALSE(store->reads_to_device(store->find(key_of(1))[0]));
}

}  // namespace
}  // namespace kvlane
