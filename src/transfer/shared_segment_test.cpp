// Segments: what one side makes the other takes, and nothing else.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstdio>

namespace kvlane {
namespace {

using ::testing::HasSubstr;

constexpr off_t kSegmentBytes = kSharedHeaderBytes + 2 * kRingBytesMin;

TEST(SharedSegment, BothSidesSeeTheSameMemory) {
  OwnedFile file;
  const auto made = std::move(*SharedSegment::create(kRingBytesMin, &file));
  const auto taken = std::move(*SharedSegment::adopt(file, kRingBytesMin));
  for (const int ring : {0, 1}) {
    EXPECT_EQ(made->control(ring).written.load(), 0U);
    made->control(ring).written = 5 + ring;
    EXPECT_EQ(taken->control(ring).written.load(), 5U + ring);
    ASSERT_EQ(made->bytes(ring).size(), kRingBytesMin);
    for (const std::byte byte : taken->bytes(ring)) ASSERT_EQ(byte, std::byte{0});
    made->bytes(ring).back() = std::byte(7 + ring);
    EXPECT_EQ(taken->bytes(ring).back(), std::byte(7 + ring));
  }
}

TEST(SharedSegment, LivesWithoutItsFileAndItsMaker) {
  OwnedFile file;
  auto made = std::move(*SharedSegment::create(kRingBytesMin, &file));
  made->bytes(1)[9] = std::byte{3};
  const auto taken = std::move(*SharedSegment::adopt(file, kRingBytesMin));
  file.reset();
  made.reset();
  EXPECT_EQ(taken->bytes(1)[9], std::byte{3});
}

TEST(SharedSegment, CannotBeMadeShorterOrLonger) {
  OwnedFile file;
  ASSERT_TRUE(SharedSegment::create(kRingBytesMin, &file).ok());
  EXPECT_NE(::ftruncate(file.get(), 0), 0);
  EXPECT_NE(::ftruncate(file.get(), kSegmentBytes + 1), 0);
  EXPECT_NE(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedSegment, RingsHaveLimits) {
  for (const std::size_t bytes : {std::size_t{0}, kRingBytesMin / 2, kRingBytesMin + 1,
                                  3 * kRingBytesMin, 2 * kRingBytesMax, ~std::size_t{0}}) {
    OwnedFile file;
    const auto made = SharedSegment::create(bytes, &file);
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument) << bytes;
    EXPECT_THAT(made.status().message(), HasSubstr(std::to_string(bytes)));
    EXPECT_FALSE(file);
    ASSERT_TRUE(SharedSegment::create(kRingBytesMin, &file).ok());
    EXPECT_EQ(SharedSegment::adopt(file, bytes).status().code(), Code::kCorrupt) << bytes;
  }
  OwnedFile file;
  EXPECT_TRUE(SharedSegment::create(kRingBytesMax, &file).ok());
  EXPECT_EQ(SharedSegment::adopt(file, kRingBytesMin).status().code(), Code::kCorrupt);
}

// Beyond this limit the system sends a signal that ends the process.
TEST(SharedSegment, ALimitOnFilesIsAnErrorAndNotTheEnd) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = kSegmentBytes - 1;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  OwnedFile file;
  const auto made = SharedSegment::create(kRingBytesMin, &file);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(made.status().code(), Code::kUnavailable);
  EXPECT_THAT(made.status().message(), HasSubstr("no shared memory"));
}

OwnedFile memory_of(off_t bytes, int seals) {
  OwnedFile file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), bytes), 0);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

TEST(SharedSegment, OtherFilesAreRefused) {
  EXPECT_TRUE(SharedSegment::adopt(memory_of(kSegmentBytes, F_SEAL_SHRINK), kRingBytesMin).ok());
  const auto unsealed = SharedSegment::adopt(memory_of(kSegmentBytes, 0), kRingBytesMin).status();
  EXPECT_EQ(unsealed.code(), Code::kCorrupt);
  EXPECT_THAT(unsealed.message(), HasSubstr("shorter"));
  EXPECT_FALSE(SharedSegment::adopt(memory_of(kSegmentBytes, F_SEAL_GROW), kRingBytesMin).ok());
  for (const off_t bytes : {off_t{0}, kSegmentBytes - 1, kSegmentBytes + 1}) {
    EXPECT_EQ(SharedSegment::adopt(memory_of(bytes, F_SEAL_SHRINK), kRingBytesMin).status().code(),
              Code::kCorrupt);
  }
  EXPECT_FALSE(SharedSegment::adopt(OwnedFile(), kRingBytesMin).ok());
  std::FILE* const ordinary = std::tmpfile();
  ASSERT_NE(ordinary, nullptr);
  const OwnedFile on_disk(::dup(::fileno(ordinary)));
  (void)std::fclose(ordinary);
  ASSERT_EQ(::ftruncate(on_disk.get(), kSegmentBytes), 0);
  EXPECT_EQ(SharedSegment::adopt(on_disk, kRingBytesMin).status().code(), Code::kCorrupt);
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const OwnedFile out(ends[0]), in(ends[1]);
  EXPECT_EQ(SharedSegment::adopt(out, kRingBytesMin).status().code(), Code::kCorrupt);
  const OwnedFile null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(SharedSegment::adopt(null, kRingBytesMin).status().code(), Code::kCorrupt);
}

// A mapping that does not permit writing would end us at the first position we move.
TEST(SharedSegment, MemoryThatCannotBeWrittenIsRefused) {
  EXPECT_FALSE(
      SharedSegment::adopt(memory_of(kSegmentBytes, F_SEAL_SHRINK | F_SEAL_WRITE), kRingBytesMin)
          .ok());
  const OwnedFile writable = memory_of(kSegmentBytes, F_SEAL_SHRINK);
  const std::string name = "/proc/self/fd/" + std::to_string(writable.get());
  const OwnedFile readable(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(readable);
  EXPECT_EQ(SharedSegment::adopt(readable, kRingBytesMin).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace kvlane
