// Products of warpgroups on emulated threads, against plain loops; and arrivals.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/warpgroup_device.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "gpu/emulated_block.h"
#include "gpu/warpgroup_fixture.h"

namespace kvlane::gpu {
namespace {

using warpgroup_fixture::kByteColumns;
using warpgroup_fixture::kRows;
using warpgroup_fixture::Rows;

template <int kColumns>
void expect_right() {
  const Rows rows(kColumns);
  for (const std::uint64_t seed : {1, 2}) {
    std::vector<std::int32_t> bytes(std::size_t{kRows} * kByteColumns);
    std::vector<float> halves = rows.halves_d;
    const auto shared = std::make_unique<WarpgroupShared<kColumns>>();
    const WarpgroupTask task{rows.bytes_a[0].bytes,  rows.bytes_b[0].bytes,  bytes.data(),
                             rows.halves_a[0].bytes, rows.halves_b[0].bytes, halves.data()};
    run_block(kWarpgroupTestThreads, seed,
              [&](EmulatedThread& t) { multiply_rows<kColumns>(t, task, *shared); });
    EXPECT_TRUE(rows.are_right(bytes, halves)) << kColumns << " columns";
  }
}

TEST(Warpgroup, MultipliesRows) {
  expect_right<72>();
  expect_right<136>();
}

// Rows of ones, which are the same in any place.
struct Ones {
  alignas(1024) Words4 rows[64][8] = {};
  Ones() {
    for (auto& row : rows) {
      for (Words4& piece : row) piece = {{0x01010101, 0x01010101, 0x01010101, 0x01010101}};
    }
  }
};

TEST(Warpgroup, ResultsArePoisonUntilTheWaitForTheirGroup) {
  const auto ones = std::make_unique<Ones>();
  std::int32_t before = 0, between = 0, after = 0;
  run_block(kWarpgroupThreads, 3, [&](EmulatedThread& t) {
    std::int32_t first[32], second[32];
    t.begin_products();
    t.multiply_s8s8<false>(first, ones->rows[0][0], ones->rows[0][0], 0);
    t.close_products();
    t.multiply_s8s8<false>(second, ones->rows[0][0], ones->rows[0][0], 0);
    t.close_products();
    const std::int32_t early = first[0];
    t.wait_products_but<1>(first);
    const std::int32_t one = first[0], other = second[0];
    t.wait_products_but<0>(second);
    if (t.index() != 5) return;
    before = early;
    between = one - 32 + other;
    after = second[31];
  });
  EXPECT_EQ(before, -1);
  EXPECT_EQ(between, -1);
  EXPECT_EQ(after, 32);
}

// What operands are read from may not be written before the wait: some order shows it.
TEST(Warpgroup, OperandsAreReadUntilTheWait) {
  int changed = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto ones = std::make_unique<Ones>();
    run_block(kWarpgroupThreads, seed, [&](EmulatedThread& t) {
      std::int32_t d[32];
      t.multiply_s8s8<false>(d, ones->rows[0][0], ones->rows[0][0], 0);
      t.close_products();
      ones->rows[t.index() / 8 % 64][t.index() % 8] = {};
      t.wait_products_but<0>(d);
      if (t.index() != 0) return;
      ++(d[0] == 32 ? kept : changed);
    });
  }
  EXPECT_GT(changed, 0);
  EXPECT_GT(kept, 0);
}

// One warp brings numbers by copies, another one sums them, through a ring of two places.
TEST(Arrivals, WarpsHandOverWhatIsCopied) {
  constexpr int kTimes = 9, kPlaces = 2;
  std::vector<Words4> from(kTimes);
  for (int i = 0; i < kTimes; ++i) from[i].w[3] = 1U << i;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Arrivals there[kPlaces], done[kPlaces];
    Words4 places[kPlaces];
    std::uint32_t sums[kWarpThreads] = {};
    run_block(2 * kWarpThreads, seed, [&](EmulatedThread& t) {
      if (t.index() < kPlaces) {
        t.init_arrivals(there[t.index()], 1);
        t.init_arrivals(done[t.index()], kWarpThreads);
      }
      t.sync_block();
      for (int i = 0; i < kTimes; ++i) {
        const int place = i % kPlaces;
        const unsigned parity = i / kPlaces % 2;
        if (t.index() == 0) {
          t.wait_arrivals(done[place], parity ^ 1);
          t.expect_bytes(there[place], sizeof(Words4));
          t.copy_bulk(places[place], reinterpret_cast<const std::byte*>(&from[i]), sizeof(Words4),
                      there[place]);
        } else if (t.warp() == 1) {
          t.wait_arrivals(there[place], parity);
          sums[t.lane()] += places[place].w[3];
          t.arrive(done[place]);
        }
      }
    });
    for (const std::uint32_t sum : sums) EXPECT_EQ(sum, (1U << kTimes) - 1);
  }
}

TEST(Arrivals, WhatIsCopiedIsPoisonUntilTheWait) {
  const Words4 from{};
  Arrivals there;
  Words4 to{};
  std::uint32_t early = 0;
  run_block(kWarpThreads, 1, [&](EmulatedThread& t) {
    if (t.index() != 0) return;
    t.init_arrivals(there, 1);
    t.expect_bytes(there, sizeof(from));
    t.copy_bulk(to, reinterpret_cast<const std::byte*>(&from), sizeof(from), there);
    early = to.w[0];
    t.wait_arrivals(there, 0);
  });
  EXPECT_EQ(early, ~0U);
  EXPECT_EQ(to.w[0], 0U);
}

TEST(Arrivals, ThreadsThatWaitForEverAreReported) {
  Arrivals arrivals;
  EXPECT_THROW(run_block(kWarpThreads, 1,
                         [&](EmulatedThread& t) {
                           if (t.index() == 0) t.init_arrivals(arrivals, kWarpThreads);
                           t.sync_warp();
                           if (t.index() != 7) t.arrive(arrivals);
                           t.wait_arrivals(arrivals, 0);
                         }),
               std::logic_error);
}

}  // namespace
}  // namespace kvlane::gpu
