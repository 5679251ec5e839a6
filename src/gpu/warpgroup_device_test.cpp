// Products of warpgroups on emulated threads, against plain loops.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/warpgroup_device.h"

#include <gtest/gtest.h>

#include <memory>

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
    rows.expect_right(bytes, halves);
  }
}

TEST(Warpgroup, MultipliesRows) {
  expect_right<72>();
  expect_right<136>();
}

// Rows of ones, which are the same in any place.
struct Ones {
  alignas(1024) Words4 rows[64][8];
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

}  // namespace
}  // namespace kvlane::gpu
