// Files of both backends: bytes come back, errors have words, many requests are under way at once;
// and the slow files say how slow.
// SPDX-License-Identifier: Apache-2.0
#include "store/files.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/temporary_directory.h"
#include "cpu/memory.h"
#include "store/paced_files.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using Backend = FileOptions::Backend;

PageBuffer filled(std::size_t bytes, unsigned seed) {
  PageBuffer buffer = std::move(*PageBuffer::allocate(bytes));
  for (std::size_t i = 0; i < bytes; ++i) {
    buffer.data()[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 8);
  }
  return buffer;
}
std::span<std::byte> all_of(const PageBuffer& buffer) { return {buffer.data(), buffer.bytes()}; }

class Files : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    auto files = open_store_files({.backend = GetParam(), .devices = 2, .depth = 4});
    if (!files.ok() && files.status().code() == Code::kUnsupported) {
      GTEST_SKIP() << files.status().message();
    }
    ASSERT_TRUE(files.ok());
    files_ = std::move(*files);
  }
  std::unique_ptr<StoreFile> create(const char* name, int device = 0) {
    auto file = files_->open(directory_.path() / name, FileAccess::kCreate, device);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(*file);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<StoreFiles> files_;
};

TEST_P(Files, BytesComeBack) {
  const auto file = create("a", 1);
  const PageBuffer out = filled(3 * kFileAlignment, 1);
  ASSERT_TRUE(transfer_and_wait(*files_, *file, true, kFileAlignment, all_of(out)).ok());
  ASSERT_TRUE(files_->sync(*file).ok());
  ASSERT_TRUE(files_->sync_directory(directory_.path()).ok());
  EXPECT_EQ(*files_->bytes(*file), 4 * kFileAlignment);
  const PageBuffer in = std::move(*PageBuffer::allocate(2 * kFileAlignment));
  ASSERT_TRUE(transfer_and_wait(*files_, *file, false, 2 * kFileAlignment, all_of(in)).ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data() + kFileAlignment, 2 * kFileAlignment), 0);
}

TEST_P(Files, ManyRequestsAreUnderWay) {
  const auto file = create("a");
  constexpr int kRequests = 200;  // many times the depth
  const PageBuffer out = filled(kRequests * kFileAlignment, 2);
  const PageBuffer in = std::move(*PageBuffer::allocate(kRequests * kFileAlignment));
  for (const bool write : {true, false}) {
    std::atomic<int> left = kRequests;
    for (int r = kRequests - 1; r >= 0; --r) {
      const auto memory =
          all_of(write ? out : in).subspan(std::size_t(r) * kFileAlignment, kFileAlignment);
      files_->submit({.file = file.get(),
                      .write = write,
                      .offset = std::uint64_t(r) * kFileAlignment,
                      .memory = memory,
                      .done = [&left](const Status& status) {
                        EXPECT_TRUE(status.ok()) << status.message();
                        left -= 1;
                        left.notify_one();
                      }});
    }
    for (int n = left; n > 0; n = left) left.wait(n);
  }
  EXPECT_EQ(std::memcmp(in.data(), out.data(), out.bytes()), 0);
}

TEST_P(Files, TheEndWaitsForAllRequests) {
  const auto file = create("a");
  const PageBuffer out = filled(64 * kFileAlignment, 3);
  std::atomic<int> done = 0;
  for (int r = 0; r < 64; ++r) {
    files_->submit({.file = file.get(),
                    .write = true,
                    .offset = std::uint64_t(r) * kFileAlignment,
                    .memory = all_of(out).subspan(std::size_t(r) * kFileAlignment, kFileAlignment),
                    .done = [&done](const Status&) { done += 1; }});
  }
  files_.reset();
  EXPECT_EQ(done, 64);
}

TEST_P(Files, RequestsMayBeMadeWhenOthersEnd) {
  const auto file = create("a");
  const PageBuffer out = filled(kFileAlignment, 4);
  std::atomic<int> rounds = 0;
  std::function<void(const Status&)> again = [&](const Status& status) {
    EXPECT_TRUE(status.ok());
    if (++rounds < 20) {
      files_->submit(
          {file.get(), true, std::uint64_t(rounds) * kFileAlignment, all_of(out), again});
    }
    rounds.notify_one();
  };
  files_->submit({file.get(), true, 0, all_of(out), again});
  for (int n = rounds; n < 20; n = rounds) rounds.wait(n);
  files_.reset();
}

TEST_P(Files, ReadingPastTheEndIsCorrupt) {
  const auto file = create("a");
  const PageBuffer memory = filled(2 * kFileAlignment, 5);
  ASSERT_TRUE(
      transfer_and_wait(*files_, *file, true, 0, all_of(memory).first(kFileAlignment)).ok());
  for (const std::uint64_t offset :
       {std::uint64_t{0}, std::uint64_t{kFileAlignment}, std::uint64_t{1} << 40}) {
    const Status status = transfer_and_wait(*files_, *file, false, offset, all_of(memory));
    EXPECT_EQ(status.code(), Code::kCorrupt) << offset;
    EXPECT_THAT(status.message(), HasSubstr("ends before byte"));
  }
  std::filesystem::resize_file(directory_.path() / "a", 100);
  EXPECT_EQ(transfer_and_wait(*files_, *file, false, 0, all_of(memory)).code(), Code::kCorrupt);
}

TEST_P(Files, HolesAreZerosAndTakeNoRoom) {
  const auto file = create("a");
  const PageBuffer out = filled(256 * kFileAlignment, 6);
  ASSERT_TRUE(transfer_and_wait(*files_, *file, true, 0, all_of(out)).ok());
  const Status status = files_->give_back(*file, kFileAlignment, 254 * kFileAlignment);
  if (status.code() == Code::kUnsupported) GTEST_SKIP() << status.message();
  ASSERT_TRUE(status.ok()) << status.message();
  const PageBuffer in = filled(3 * kFileAlignment, 7);
  ASSERT_TRUE(transfer_and_wait(*files_, *file, false, 0, all_of(in)).ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), kFileAlignment), 0);
  for (std::size_t i = kFileAlignment; i < 3 * kFileAlignment; ++i)
    ASSERT_EQ(in.data()[i], std::byte{});
  EXPECT_EQ(*files_->bytes(*file), 256 * kFileAlignment);
}

TEST_P(Files, NamesAreListedAndRemoved) {
  create("a");
  create("b");
  std::filesystem::create_directory(directory_.path() / "folder");
  EXPECT_EQ(files_->list(directory_.path())->size(), 2U);
  ASSERT_TRUE(files_->remove(directory_.path() / "a").ok());
  const auto entries = files_->list(directory_.path());
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ(entries->front().name, "b");
  EXPECT_EQ(files_->list(directory_.path() / "nobody").status().code(), Code::kNotFound);
  EXPECT_EQ(files_->remove(directory_.path() / "a").code(), Code::kNotFound);
}

TEST_P(Files, OpeningWantsWhatIsThereAndCreatingWhatIsNot) {
  create("a");
  EXPECT_TRUE(files_->open(directory_.path() / "a", FileAccess::kOpen, 0).ok());
  EXPECT_EQ(files_->open(directory_.path() / "b", FileAccess::kOpen, 0).status().code(),
            Code::kNotFound);
  EXPECT_FALSE(files_->open(directory_.path() / "a", FileAccess::kCreate, 0).ok());
  EXPECT_FALSE(files_->open(directory_.path() / "c", FileAccess::kCreate, 2).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, Files, ::testing::Values(Backend::kIoUring, Backend::kThreads));

TEST(FileOptions, OutOfRangeIsRefused) {
  EXPECT_FALSE(open_store_files({.devices = 0}).ok());
  EXPECT_FALSE(open_store_files({.depth = 0}).ok());
  EXPECT_FALSE(open_store_files({.depth = 4097}).ok());
  EXPECT_TRUE(open_store_files({.backend = Backend::kAuto, .direct = false}).ok());
}

TEST(PacedFiles, TakeTheTimeOfTheirDevice) {
  TemporaryDirectory directory(TemporaryDirectory::Place::kMemory);
  auto files = paced_files(
      std::move(*open_store_files({.devices = 2})),
      {.read_bytes_per_second = 100 * kFileAlignment / 0.05, .latency = Seconds(0.01)}, 2);
  const auto a = std::move(*files->open(directory.path() / "a", FileAccess::kCreate, 0));
  const auto b = std::move(*files->open(directory.path() / "b", FileAccess::kCreate, 1));
  const PageBuffer memory = filled(100 * kFileAlignment, 8);
  for (StoreFile* file : {a.get(), b.get()}) {
    ASSERT_TRUE(transfer_and_wait(*files, *file, true, 0, all_of(memory)).ok());
  }
  const TimePoint start = SteadyClock::now();
  std::atomic<int> left = 4;
  for (int r = 0; r < 4; ++r) {  // two on each device, which work side by side
    files->submit(
        {r % 2 == 0 ? a.get() : b.get(), false, std::uint64_t(r / 2) * 50 * kFileAlignment,
         all_of(memory).subspan(std::size_t(r) * 25 * kFileAlignment, 25 * kFileAlignment),
         [&left](const Status& status) {
           EXPECT_TRUE(status.ok());
           left -= 1;
           left.notify_one();
         }});
  }
  for (int n = left; n > 0; n = left) left.wait(n);
  // 50 pages a device at 2,000 pages a second, and once the latency.
  EXPECT_GE(seconds_since(start), 0.035);
}

}  // namespace
}  // namespace kvlane
