// Device code of checksums on emulated threads, against libxxhash.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/xxh3_device.h"

#include <gtest/gtest.h>

#include "gpu/xxh3_fixture.h"

#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#define KVLANE_HAS_XXHASH
#endif

namespace kvlane::gpu {
namespace {

using namespace xxh3_fixture;

TEST(Xxh3Device, KnownSums) {
  for (const Known& known : kKnown) {
    EXPECT_EQ(sum_on_emulated_threads(content(known.bytes), kXxh3Threads, 1), known.sum)
        << known.bytes;
  }
}

#ifdef KVLANE_HAS_XXHASH
std::uint64_t expected(ByteView bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

TEST(Xxh3Device, AnyLength) {
  const Bytes all = content(kLengths[std::size(kLengths) - 1]);
  for (const std::size_t bytes : kLengths) {
    const ByteView view = ByteView(all).first(bytes);
    for (const int threads : {32, 64, kXxh3Threads}) {
      EXPECT_EQ(sum_on_emulated_threads(view, threads, bytes), expected(view))
          << bytes << " " << threads;
    }
  }
  for (std::size_t bytes = kXxh3BytesMin; bytes < 2200; ++bytes) {
    const ByteView view = ByteView(all).first(bytes);
    ASSERT_EQ(sum_on_emulated_threads(view, 64, bytes), expected(view)) << bytes;
  }
}

// All zeros, all ones: products and carries at their ends.
TEST(Xxh3Device, ExtremeBytes) {
  for (const std::byte byte : {std::byte{0}, std::byte{0xFF}}) {
    for (const std::size_t bytes : {300, 1024, 20000}) {
      const Bytes same(bytes, byte);
      EXPECT_EQ(sum_on_emulated_threads(same, 64, 3), expected(same));
    }
  }
}

// Whatever order threads run in: a barrier that is missing would show for some seed.
TEST(Xxh3Device, AnyOrderOfThreads) {
  const Bytes bytes = content(70001);
  const std::uint64_t sum = expected(bytes);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    EXPECT_EQ(sum_on_emulated_threads(bytes, 64, seed), sum) << seed;
  }
}
#else
TEST(Xxh3Device, AnyLength) { GTEST_SKIP() << "there is no xxhash.h to compare with"; }
#endif

// Wherever a bit is: in whole blocks, in stripes behind them, in the last stripe.
TEST(Xxh3Device, EachBitCounts) {
  Bytes bytes = content(3210);
  const std::uint64_t sum = sum_on_emulated_threads(bytes, 64, 1);
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    const auto bit = static_cast<std::byte>(1U << at % 8);
    bytes[at] ^= bit;
    ASSERT_NE(sum_on_emulated_threads(bytes, 32, 1), sum) << at;
    bytes[at] ^= bit;
  }
}

}  // namespace
}  // namespace kvlane::gpu
