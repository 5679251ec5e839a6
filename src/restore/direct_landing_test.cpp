// Slabs that are read straight to memory of a device, one of emulated threads, by a library that
// tests provide: they come to their blocks, and whatever is damaged is found there.
// SPDX-License-Identifier: Apache-2.0
#include "restore/direct_landing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "format/checksum.h"
#include "gpu/cufile_abi.h"
#include "gpu/fake_cufile.h"
#include "model/emulated_accelerator.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

constexpr std::size_t kPage = kExtentPageBytes;
constexpr int kSlabs = 3;
constexpr int kLayer = 1;
const KvShape kShape{kSlabs, 2, 64, ElementType::kBf16};  // of parts, which are layers

std::shared_ptr<const KvFormat> format_of_parts(const std::string& name) {
  const RopeTable rope(tables_fixture::inverse_frequencies(kShape.head_dim), 256);
  KvTables tables;
  tables_fixture::add_zack_tables(kShape, true, tables);
  return take(make_kv_format(
      name, {.shape = kShape, .rope = &rope, .tables = &tables, .isa = Isa::kScalar}));
}

// A device, and what reads to it.
class DirectTest : public testing::Test {
 protected:
  DirectTest() {
    fake_.with_memory = [this](const std::function<void()>& touch) { device_.with_memory(touch); };
  }
  void SetUp() override {
    if (!reads_past_caches(directory_.path())) GTEST_SKIP() << "no direct reads in /tmp here";
    storage_ = take(gpu::DirectStorage::open([] { return Status(); }, kFakeCufile));
  }
  ~DirectTest() override { fake_.reset(); }

  EmulatedAccelerator device_;
  FakeCuFile& fake_ = fake_cufile();
  const TemporaryDirectory directory_;
  std::shared_ptr<gpu::DirectStorage> storage_;
};

using DirectRoomsTest = DirectTest;

TEST_F(DirectRoomsTest, AreGivenOnceAndComeBack) {
  const auto rooms = take(DirectRooms::open(device_, *storage_, 16 * kPage));
  EXPECT_EQ(fake_.memories, 1);
  std::vector<DirectRooms::Room> taken;
  std::vector<const std::byte*> begins;
  for (int i = 0; i < 4; ++i) {
    taken.push_back(rooms->take(4 * kPage));
    ASSERT_TRUE(bool(taken.back()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.back().memory().data()) % kPage, 0U);
    EXPECT_EQ(taken.back().memory().size(), 4 * kPage);
    begins.push_back(taken.back().memory().data());
  }
  std::sort(begins.begin(), begins.end());
  for (int i = 1; i < 4; ++i) EXPECT_GE(begins[i] - begins[i - 1], 4 * kPage);
  EXPECT_FALSE(bool(rooms->take(kPage)));
  // In any order: neighbours become one again.
  for (const int order : {0, 1}) {
    for (const int i : order == 0 ? std::vector{1, 3, 2, 0} : std::vector{0, 2, 1, 3}) {
      taken[i] = {};
    }
    EXPECT_TRUE(bool(rooms->take(16 * kPage)));
    for (auto& room : taken) room = rooms->take(4 * kPage);
  }
}

TEST_F(DirectRoomsTest, TheEndWaitsForAllRooms) {
  auto rooms = take(DirectRooms::open(device_, *storage_, 16 * kPage));
  DirectRooms::Room room = rooms->take(kPage);
  std::atomic<bool> ended = false;
  std::thread end([&] {
    rooms.reset();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(ended);
  EXPECT_EQ(fake_.memories, 1);
  room = {};
  end.join();
  EXPECT_EQ(fake_.memories, 0);
}

TEST_F(DirectRoomsTest, RefusalsAreTold) {
  fake_.memory_error = gpu::cufile::kNotPinned;
  EXPECT_EQ(DirectRooms::open(device_, *storage_, kPage).status().code(), Code::kUnavailable);
  fake_.memory_error = 0;
  device_.fail_call(1);
  EXPECT_EQ(DirectRooms::open(device_, *storage_, kPage).status().code(), Code::kInternal);
}

// Slabs of one layer in a file, as extents have their parts, and blocks for them.
class DirectLandingTest : public DirectTest {
 protected:
  void prepare(const std::string& format) {
    format_ = format == "bf16" ? nullptr : format_of_parts(format);
    kind_.emplace(kShape, format_.get());
    const SlabSizes sizes =
        format_ != nullptr ? format_->slab_sizes() : SlabSizes(kShape.layers, kShape.slab_bytes());
    const std::size_t bytes = (kSlabs + 1) * sizes.block_bytes();
    memory_ = take(device_.allocate(bytes));
    copy_ = take(device_.copies());
    pool_.emplace(take(format_ == nullptr
                           ? BlockPool::over(kShape, {memory_.get(), bytes}, copy_)
                           : BlockPool::over_sealed(kShape, sizes, {memory_.get(), bytes}, copy_)));
    landing_ = take(DirectLanding::open(device_, *storage_, 256 * kPage, kSlabs));
    write_file();
  }

  // Any bytes do: nothing is opened.
  void write_file() {
    slabs_.clear();
    head_ = {};
    kind_->describe(head_);
    const std::size_t plane = kShape.slab_bytes() / 2;
    for (int i = 0; i < kSlabs; ++i) {
      Bytes& slab = slabs_.emplace_back(kind_->slab_bytes(kLayer));
      std::uint32_t state = static_cast<std::uint32_t>(i) + 77;
      for (std::byte& byte : slab) {
        state = state * 1664525U + 1013904223U;
        byte = static_cast<std::byte>(state >> 24);
      }
      const bool rows = format_ == nullptr;
      head_.parts.push_back({.k_bytes = static_cast<std::uint32_t>(rows ? plane : slab.size()),
                             .v_bytes = static_cast<std::uint32_t>(rows ? plane : 0),
                             .checksum = xxh3_64(body_of(slab))});
    }
    ASSERT_TRUE(place_parts(head_).ok());
    std::ofstream out(path_, std::ios::binary);
    Bytes all(head_.extent_bytes());
    for (int i = 0; i < kSlabs; ++i) {
      const Bytes body = body_of(slabs_[i]);
      std::copy(body.begin(), body.end(), all.begin() + head_.parts[i].page * kPage);
    }
    out.write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(all.size()));
  }
  // All K, then all V.
  Bytes body_of(const Bytes& slab) const {
    if (format_ != nullptr) return slab;
    Bytes body;
    const std::size_t half = kShape.page_bytes() / 2;
    for (std::size_t part = 0; part < 2; ++part) {
      for (int head = 0; head < kShape.kv_heads; ++head) {
        const auto from = slab.begin() + head * kShape.page_bytes() + part * half;
        body.insert(body.end(), from, from + half);
      }
    }
    return body;
  }
  void flip(std::size_t byte, int bit) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(byte));
    const int value = file.get() ^ 1 << bit;
    file.seekp(static_cast<std::streamoff>(byte));
    file.put(static_cast<char>(value));
  }

  // Slab i to block i; the file is read anew.
  Status land(std::vector<Status>& verdicts) {
    const auto file = take(storage_->open_file(path_));
    DirectRooms::Room room = landing_->rooms().take(head_.extent_bytes() - kPage);
    EXPECT_EQ(take(storage_->read(*file, kPage, room.memory())), room.memory().size());
    std::vector<ArrivedSlab> arrived;
    for (int i = 0; i < kSlabs; ++i) {
      const ExtentPart& part = head_.parts[i];
      arrived.push_back({room.memory().data() + (part.page - 1) * kPage, &part, i});
    }
    verdicts.assign(kSlabs, Status());
    return landing_->land(*kind_, *pool_, kLayer, arrived, verdicts);
  }
  Bytes block(int index) const {
    Bytes slab(kind_->slab_bytes(kLayer));
    EXPECT_TRUE(copy_(slab.data(), pool_->slab_memory(index, kLayer), slab.size()).ok());
    return slab;
  }

  const std::filesystem::path path_ = directory_.path() / "slabs";
  std::shared_ptr<const KvFormat> format_;
  std::optional<SlabKind> kind_;
  Accelerator::Memory memory_;
  MemoryCopy copy_;
  std::optional<BlockPool> pool_;
  std::unique_ptr<DirectLanding> landing_;
  ExtentHead head_;
  std::vector<Bytes> slabs_;
};

constexpr const char* kFormats[] = {"bf16", "hack", "hack:p=64", "zack:keep=0.5"};

TEST_F(DirectLandingTest, SlabsComeToTheirBlocks) {
  for (const char* const format : kFormats) {
    SCOPED_TRACE(format);
    prepare(format);
    ASSERT_TRUE(DirectLanding::takes(*kind_, head_, kLayer, 1));  // others have other lengths
    const Bytes beside = block(kSlabs);
    std::vector<Status> verdicts;
    const Status status = land(verdicts);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < kSlabs; ++i) {
      EXPECT_TRUE(verdicts[i].ok()) << verdicts[i].message();
      EXPECT_TRUE(block(i) == slabs_[i]) << i;
    }
    EXPECT_EQ(block(kSlabs), beside);
  }
}

TEST_F(DirectLandingTest, AnyChangedBitIsFound) {
  for (const char* const format : {"bf16", "hack"}) {
    SCOPED_TRACE(format);
    prepare(format);
    const std::size_t bytes = head_.parts[1].bytes();
    for (const std::size_t at : {std::size_t{0}, bytes / 3, bytes - 64, bytes - 1}) {
      const std::size_t place = head_.parts[1].page * kPage + at;
      const int bit = static_cast<int>(at % 8);
      flip(place, bit);
      std::vector<Status> verdicts;
      ASSERT_TRUE(land(verdicts).ok());
      EXPECT_TRUE(verdicts[0].ok() && verdicts[2].ok());
      EXPECT_EQ(verdicts[1].code(), Code::kCorrupt) << at;
      EXPECT_TRUE(block(0) == slabs_[0] && block(2) == slabs_[2]);
      flip(place, bit);
    }
    // What is between parts is nobody's.
    flip(kPage - 1, 3);
    std::vector<Status> verdicts;
    ASSERT_TRUE(land(verdicts).ok());
    EXPECT_TRUE(verdicts[1].ok());
  }
}

// A library that says that bytes came, and they did not.
TEST_F(DirectLandingTest, BytesThatNeverCameAreFound) {
  prepare("bf16");
  fake_.lies = true;
  const auto file = take(storage_->open_file(path_));
  DirectRooms::Room room = landing_->rooms().take(2 * kPage);
  EXPECT_EQ(take(storage_->read(*file, kPage, room.memory())), 2 * kPage);
  const ArrivedSlab arrived{room.memory().data(), &head_.parts[0], 0};
  Status verdict;
  ASSERT_TRUE(landing_->land(*kind_, *pool_, kLayer, {&arrived, 1}, {&verdict, 1}).ok());
  EXPECT_EQ(verdict.code(), Code::kCorrupt);
}

// Whichever call fails: nobody is told that something is right that is not.
TEST_F(DirectLandingTest, AnyCallMayFail) {
  prepare("bf16");
  for (int n = 1;; ++n) {
    std::vector<Status> verdicts;
    device_.fail_call(n, EmulatedAccelerator::Counted::kBesideTheLine);
    const Status status = land(verdicts);
    const int calls = device_.calls();
    device_.fail_call(0);
    EXPECT_EQ(status.code(), calls < n ? Code::kOk : Code::kInternal) << n;
    for (int i = 0; i < kSlabs && status.ok(); ++i) EXPECT_TRUE(block(i) == slabs_[i]);
    if (calls < n) break;
    EXPECT_LT(n, 20);
  }
}

TEST_F(DirectLandingTest, WhatDoesNotLieAsInTheCacheGoesThroughTheHost) {
  prepare("bf16");
  const auto takes = [&](const auto& change) {
    ExtentHead head = head_;
    change(head);
    return DirectLanding::takes(*kind_, head, 0, kSlabs);
  };
  EXPECT_FALSE(takes([](ExtentHead& head) { head.codec = "splitzip"; }));
  EXPECT_FALSE(takes([](ExtentHead& head) { head.encrypted = true; }));
  EXPECT_FALSE(takes([](ExtentHead& head) { head.parts[1].k_bytes -= 2; }));
  EXPECT_FALSE(takes([](ExtentHead& head) { head.parts[2].v_bytes += 2; }));
  EXPECT_FALSE(takes([](ExtentHead& head) {
    head.parts[0].k_bytes *= 2;
    head.parts[0].v_bytes = 0;
  }));
  prepare("hack");
  EXPECT_FALSE(takes([](ExtentHead& head) { head.parts[1].k_bytes -= 1; }));
  EXPECT_FALSE(takes([](ExtentHead& head) { head.parts[1].v_bytes = 1; }));
  // Sums are no part of what is stored.
  prepare("hack:p=64,compute=complete");
  EXPECT_FALSE(takes([](ExtentHead&) {}));
}

}  // namespace
}  // namespace kvlane
