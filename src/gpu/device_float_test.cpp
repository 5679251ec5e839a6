// Tiles of the matrix unit on emulated threads: who has which part, against plain loops.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_float.h"

#include <gtest/gtest.h>

#include "gpu/emulated_block.h"

namespace kvlane::gpu {
namespace {

// Small whole numbers: every sum is exact.
float small(int seed) { return static_cast<float>(seed * 37 % 17 - 8); }

std::uint32_t pair(float low, float high) { return pack_bf16(low, high); }

TEST(DeviceFloat, AProductOfTiles) {
  float a[16][16], b[16][8], d[16][8];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 16; ++i) a[i][k] = small(16 * i + k);
    for (int j = 0; j < 8; ++j) b[k][j] = small(1000 + 8 * k + j);
  }
  run_block(2 * kWarpThreads, 5, [&](EmulatedThread& t) {
    const int row = t.lane() / 4, column = t.lane() % 4 * 2;
    float part[4] = {1, 2, 3, 4};
    t.mma_bf16(
        part,
        {pair(a[row][column], a[row][column + 1]), pair(a[row + 8][column], a[row + 8][column + 1]),
         pair(a[row][column + 8], a[row][column + 9]),
         pair(a[row + 8][column + 8], a[row + 8][column + 9])},
        pair(b[column][row], b[column + 1][row]), pair(b[column + 8][row], b[column + 9][row]));
    if (t.warp() != 1) return;
    for (int i = 0; i < 4; ++i) {
      d[row + i / 2 * 8][column + i % 2] = part[i] - static_cast<float>(i + 1);
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      EXPECT_EQ(d[i][j], sum) << i << ", " << j;
    }
  }
}

TEST(DeviceFloat, ATransposition) {
  std::uint32_t result[kWarpThreads];
  const auto element = [](int row, int column) {
    return static_cast<std::uint32_t>(1000 + 8 * row + column);
  };
  run_block(kWarpThreads, 6, [&](EmulatedThread& t) {
    const int row = t.lane() / 4, column = t.lane() % 4 * 2;
    result[t.lane()] = t.transposed(element(row, column) | element(row, column + 1) << 16);
  });
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    EXPECT_EQ(result[lane], element(column, row) | element(column + 1, row) << 16);
  }
}

TEST(DeviceFloat, PowersAndPairs) {
  EXPECT_EQ(power_of_two(minus_infinity()), 0);
  EXPECT_EQ(power_of_two(-3), 0.125F);
  EXPECT_EQ(pack_bf16(1.0F, -2.0F), 0xC0003F80);
  EXPECT_EQ(pack_bf16(1.00390625F, 1.01171875F), 0x3F823F80) << "half to even";
}

}  // namespace
}  // namespace kvlane::gpu
