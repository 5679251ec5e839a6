// Direct reads by a library that is loaded at run time: bytes come where they should, and whatever
// is missing or refused has a sentence.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/direct_storage.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/bytes.h"
#include "base/temporary_directory.h"
#include "gpu/cufile_abi.h"
#include "gpu/fake_cufile.h"

namespace kvlane::gpu {
namespace {

constexpr std::size_t kPage = 4096;

Status nothing() { return {}; }

// "Device" memory is the host's here.
class DirectStorageTest : public testing::Test {
 protected:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  void SetUp() override {
    if (!reads_past_caches(directory_.path())) GTEST_SKIP() << "no direct reads in /tmp here";
    std::ofstream out(path_, std::ios::binary);
    for (std::size_t i = 0; i < 4 * kPage; ++i) out.put(static_cast<char>(i * 7 + i / kPage));
  }
  ~DirectStorageTest() override { fake_.reset(); }

  static Result<std::shared_ptr<DirectStorage>> open(std::function<Status()> enter = nothing) {
    return DirectStorage::open(std::move(enter), kFakeCufile);
  }
  static bool has(const Status& status, const std::string& text) {
    return status.message().find(text) != std::string::npos;
  }
  std::span<std::byte> memory() const { return {memory_.get(), 8 * kPage}; }
  Bytes expected(std::size_t first, std::size_t bytes) const {
    Bytes all(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      all[i] = static_cast<std::byte>((first + i) * 7 + (first + i) / kPage);
    }
    return all;
  }

  FakeCuFile& fake_ = fake_cufile();
  const TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "file";
  const std::unique_ptr<std::byte, Free> memory_{
      static_cast<std::byte*>(std::aligned_alloc(kPage, 8 * kPage))};
};

TEST_F(DirectStorageTest, BytesComeToTheirPlaces) {
  {
    const auto storage = open();
    ASSERT_TRUE(storage.ok()) << storage.status().message();
    EXPECT_EQ((*storage)->description(), "cuFile 1.14");
    EXPECT_FALSE(fake_.compatible);  // what it cannot read directly is not read
    const auto file = (*storage)->open_file(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto first = (*storage)->take_memory(memory().first(2 * kPage));
    const auto second = (*storage)->take_memory(memory().subspan(3 * kPage, 3 * kPage));
    ASSERT_TRUE(first.ok() && second.ok());
    const auto read = [&](std::size_t offset, std::size_t at, std::size_t bytes) {
      return (*storage)->read(**file, offset, memory().subspan(at, bytes));
    };
    EXPECT_EQ(*read(kPage, 0, 2 * kPage), 2 * kPage);
    EXPECT_EQ(Bytes(memory().begin(), memory().begin() + 2 * kPage), expected(kPage, 2 * kPage));
    EXPECT_EQ(*read(0, 4 * kPage, kPage), kPage);
    EXPECT_EQ(Bytes(memory().begin() + 4 * kPage, memory().begin() + 5 * kPage),
              expected(0, kPage));
    EXPECT_EQ(*read(3 * kPage, 3 * kPage, 3 * kPage), kPage);  // the file ends
    EXPECT_EQ(*read(4 * kPage, 3 * kPage, kPage), 0U);
    // Between the two, over the end of one, behind both.
    for (const std::size_t at : {kPage, 2 * kPage, 5 * kPage, 6 * kPage}) {
      EXPECT_EQ(read(0, at, 2 * kPage).status().code(), Code::kInvalidArgument) << at;
    }
  }
  EXPECT_EQ(fake_.files, 0);
  EXPECT_EQ(fake_.memories, 0);
  EXPECT_EQ(fake_.drivers, 0);
}

TEST_F(DirectStorageTest, WhatItGaveKeepsItOpen) {
  std::unique_ptr<DirectStorage::File> file;
  {
    const auto storage = open();
    ASSERT_TRUE(storage.ok());
    file = std::move(*(*storage)->open_file(path_));
  }
  EXPECT_EQ(fake_.drivers, 1);
  file.reset();
  EXPECT_EQ(fake_.drivers, 0);
}

TEST_F(DirectStorageTest, WhatIsMissingHasASentence) {
  const Status no_library = DirectStorage::open(nothing, "/no/such/libcufile.so").status();
  EXPECT_EQ(no_library.code(), Code::kUnavailable);
  EXPECT_TRUE(has(no_library, "/no/such/libcufile.so cannot be loaded")) << no_library.message();
  const Status no_functions = DirectStorage::open(nothing, "libm.so.6").status();
  EXPECT_EQ(no_functions.code(), Code::kUnavailable);
  EXPECT_TRUE(has(no_functions, "libm.so.6 has no function cuFile")) << no_functions.message();
  fake_.driver_error = cufile::kNoDriver;
  EXPECT_TRUE(has(open().status(), "nvidia-fs is not loaded"));
  fake_.driver_error = 5006;
  EXPECT_TRUE(has(open().status(), "error 5006 of cuFile"));
  fake_.driver_error = 0;
  // Older libraries open without a driver, and would read through the host.
  fake_.has_nvidia_fs = false;
  EXPECT_TRUE(has(open().status(), "nvidia-fs is not loaded"));
  EXPECT_EQ(fake_.drivers, 0);
  const Status no_device = open([] { return unavailable("no device"); }).status();
  EXPECT_EQ(no_device.message(), "no device");
}

TEST_F(DirectStorageTest, RefusalsHaveASentence) {
  const auto storage = open();
  ASSERT_TRUE(storage.ok());
  EXPECT_EQ((*storage)->open_file(directory_.path() / "none").status().code(), Code::kNotFound);
  EXPECT_TRUE((*storage)->try_directory(directory_.path()).ok());
  EXPECT_FALSE((*storage)->try_directory("/proc").ok());
  fake_.file_error = cufile::kFileRefused;
  for (const Status& refused :
       {(*storage)->open_file(path_).status(), (*storage)->try_directory(directory_.path())}) {
    EXPECT_EQ(refused.code(), Code::kUnsupported);
    EXPECT_TRUE(has(refused, "the file system")) << refused.message();
    EXPECT_TRUE(has(refused, directory_.path().string())) << refused.message();
  }
  fake_.memory_error = cufile::kNotPinned;
  const Status refused = (*storage)->take_memory(memory()).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_TRUE(has(refused, std::to_string(memory().size()))) << refused.message();
}

TEST_F(DirectStorageTest, ReadsThatFailSayWhoseFaultItIs) {
  const auto storage = open();
  ASSERT_TRUE(storage.ok());
  const auto file = (*storage)->open_file(path_);
  const auto taken = (*storage)->take_memory(memory());
  ASSERT_TRUE(file.ok() && taken.ok());
  ssize_t outcome = -1;
  fake_.outcome = [&](int, std::size_t) { return outcome; };
  const auto read = [&] { return (*storage)->read(**file, 0, memory().first(2 * kPage)); };
  const Status disk = read().status();
  EXPECT_EQ(disk.code(), Code::kUnavailable);
  EXPECT_TRUE(has(disk, "Input/output error")) << disk.message();
  outcome = -cufile::kFileRefused;
  EXPECT_EQ(read().status().code(), Code::kUnsupported);
  outcome = kPage;
  EXPECT_EQ(*read(), kPage);
}

}  // namespace
}  // namespace kvlane::gpu
