// Emulated threads meet in code that sanitizers do not see: what they touch has to be seen anyway.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulated_block.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace kvlane::gpu {
namespace {

#ifdef __SANITIZE_ADDRESS__

constexpr std::uint64_t kSeed = 1;
constexpr const char* kReport = "AddressSanitizer: heap-buffer-overflow";

// Rows of one thread less than a warp has.
std::vector<Words4> too_few() { return std::vector<Words4>(kWarpThreads - 1); }
std::vector<Words4> enough() { return std::vector<Words4>(kWarpThreads); }
const std::byte* bytes_of(const Words4& row) { return reinterpret_cast<const std::byte*>(&row); }

TEST(EmulatedBlockDeathTest, CopiesFromBeyondMemoryAreSeen) {
  const std::vector<Words4> from = too_few();
  std::vector<Words4> to = enough();
  EXPECT_DEATH(run_block(kWarpThreads, kSeed,
                         [&](EmulatedThread& thread) {
                           const int lane = thread.lane();
                           thread.copy_async(to[lane], bytes_of(*(from.data() + lane)), true);
                         }),
               kReport);
}

TEST(EmulatedBlockDeathTest, CopiesToBeyondMemoryAreSeen) {
  const std::vector<Words4> from = enough();
  std::vector<Words4> to = too_few();
  EXPECT_DEATH(run_block(kWarpThreads, kSeed,
                         [&](EmulatedThread& thread) {
                           const int lane = thread.lane();
                           thread.copy_async(*(to.data() + lane), bytes_of(from[lane]), true);
                         }),
               kReport);
}

TEST(EmulatedBlockDeathTest, MatricesBeyondMemoryAreSeen) {
  const std::vector<Words4> rows = too_few();
  for (const bool transposed : {false, true}) {
    EXPECT_DEATH(run_block(kWarpThreads, kSeed,
                           [&](EmulatedThread& thread) {
                             std::uint32_t m[4];
                             const Words4& own = *(rows.data() + thread.lane());
                             if (transposed) {
                               thread.load_transposed(own, m);
                             } else {
                               thread.load_matrices(own, m);
                             }
                           }),
                 kReport);
  }
}

TEST(EmulatedBlockDeathTest, BulkCopiesFromBeyondMemoryAreSeen) {
  const std::vector<Words4> from = too_few();
  std::vector<Words4> to = enough();
  EXPECT_DEATH(run_block(kWarpThreads, kSeed,
                         [&](EmulatedThread& thread) {
                           static Arrivals arrivals;
                           if (thread.index() == 0) {
                             constexpr unsigned kBytes = kWarpThreads * sizeof(Words4);
                             thread.init_arrivals(arrivals, 1);
                             thread.copy_bulk(to[0], bytes_of(from[0]), kBytes, arrivals);
                             thread.expect_bytes(arrivals, kBytes);
                             thread.wait_arrivals(arrivals, 0);
                           }
                         }),
               kReport);
}

// Rows are of 128 bytes; 64 of A, and 16 of B, of which there are 8.
TEST(EmulatedBlockDeathTest, OperandsBeyondMemoryAreSeen) {
  struct Free {
    void operator()(Words4* rows) const { std::free(rows); }
  };
  const auto rows = [](int count) {
    auto* const memory = static_cast<Words4*>(std::aligned_alloc(1024, count * std::size_t{128}));
    for (int i = 0; i < 8 * count; ++i) memory[i] = {};
    return std::unique_ptr<Words4, Free>(memory);
  };
  const auto a = rows(64), b = rows(8);
  EXPECT_DEATH(run_block(kWarpgroupThreads, kSeed,
                         [&](EmulatedThread& thread) {
                           std::int32_t d[8] = {};
                           thread.begin_products();
                           thread.multiply_s8s8<false>(d, *a, *b, 0);
                           thread.close_products();
                           thread.wait_products_but<0>(d);
                         }),
               kReport);
}

#endif

// The same with room for all: nothing is reported, and everything arrives.
TEST(EmulatedBlock, WhatHasRoomArrives) {
  std::vector<Words4> from(kWarpThreads), to(kWarpThreads);
  for (int i = 0; i < kWarpThreads; ++i) from[i] = {{i + 1U, i + 2U, i + 3U, i + 4U}};
  run_block(kWarpThreads, 1, [&](EmulatedThread& thread) {
    const int lane = thread.lane();
    thread.copy_async(to[lane], reinterpret_cast<const std::byte*>(&from[lane]), true);
    EXPECT_EQ(to[lane].w[0], ~0U);  // poison until the wait
    thread.wait_copies();
    EXPECT_EQ(thread.shuffle(to[lane].w[0], (lane + 1) % kWarpThreads),
              from[(lane + 1) % kWarpThreads].w[0]);
  });
  for (int i = 0; i < kWarpThreads; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(to[i].w[j], from[i].w[j]) << i << " " << j;
  }
}

}  // namespace
}  // namespace kvlane::gpu
