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

TEST(DeviceFloat, AProductOfTilesOfBinary16) {
  float a[16][16], b[16][8], d[16][8];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 16; ++i) a[i][k] = small(16 * i + k) / 16;
    for (int j = 0; j < 8; ++j) b[k][j] = small(1000 + 8 * k + j) * 16;
  }
  run_block(kWarpThreads, 9, [&](EmulatedThread& t) {
    const int row = t.lane() / 4, column = t.lane() % 4 * 2;
    float part[4] = {};
    t.mma_fp16(part,
               {pack_fp16(a[row][column], a[row][column + 1]),
                pack_fp16(a[row + 8][column], a[row + 8][column + 1]),
                pack_fp16(a[row][column + 8], a[row][column + 9]),
                pack_fp16(a[row + 8][column + 8], a[row + 8][column + 9])},
               pack_fp16(b[column][row], b[column + 1][row]),
               pack_fp16(b[column + 8][row], b[column + 9][row]));
    for (int i = 0; i < 4; ++i) d[row + i / 2 * 8][column + i % 2] = part[i];
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      EXPECT_EQ(d[i][j], sum) << i << ", " << j;
    }
  }
}

// All bytes, those with the top bit set included.
TEST(DeviceFloat, ProductsOfTilesOfBytes) {
  std::uint8_t a[16][32], b[32][8];
  for (int k = 0; k < 32; ++k) {
    for (int i = 0; i < 16; ++i) a[i][k] = static_cast<std::uint8_t>(73 * (32 * i + k) + 5);
    for (int j = 0; j < 8; ++j) b[k][j] = static_cast<std::uint8_t>(151 * (8 * k + j) + 9);
  }
  std::int32_t with_signed[16][8], with_unsigned[16][8], both_signed[16][8];
  run_block(kWarpThreads, 10, [&](EmulatedThread& t) {
    const int row = t.lane() / 4, column = t.lane() % 4;
    const auto of_a = [&](int i, int first) {
      std::uint32_t word = 0;
      for (int byte = 0; byte < 4; ++byte) word |= std::uint32_t{a[i][first + byte]} << 8 * byte;
      return word;
    };
    const auto of_b = [&](int first) {
      std::uint32_t word = 0;
      for (int byte = 0; byte < 4; ++byte) word |= std::uint32_t{b[first + byte][row]} << 8 * byte;
      return word;
    };
    const std::uint32_t words[4] = {of_a(row, 4 * column), of_a(row + 8, 4 * column),
                                    of_a(row, 16 + 4 * column), of_a(row + 8, 16 + 4 * column)};
    std::int32_t s[4] = {1, 2, 3, 4}, u[4] = {1, 2, 3, 4}, both[4] = {1, 2, 3, 4};
    t.mma_u8s8(s, words, of_b(4 * column), of_b(16 + 4 * column));
    t.mma_u8u8(u, words, of_b(4 * column), of_b(16 + 4 * column));
    t.mma_s8s8(both, words, of_b(4 * column), of_b(16 + 4 * column));
    for (int i = 0; i < 4; ++i) {
      with_signed[row + i / 2 * 8][2 * column + i % 2] = s[i] - (i + 1);
      with_unsigned[row + i / 2 * 8][2 * column + i % 2] = u[i] - (i + 1);
      both_signed[row + i / 2 * 8][2 * column + i % 2] = both[i] - (i + 1);
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      int s = 0, u = 0, both = 0;
      for (int k = 0; k < 32; ++k) {
        s += a[i][k] * static_cast<std::int8_t>(b[k][j]);
        u += a[i][k] * b[k][j];
        both += static_cast<std::int8_t>(a[i][k]) * static_cast<std::int8_t>(b[k][j]);
      }
      EXPECT_EQ(with_signed[i][j], s) << i << ", " << j;
      EXPECT_EQ(with_unsigned[i][j], u) << i << ", " << j;
      EXPECT_EQ(both_signed[i][j], both) << i << ", " << j;
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

TEST(DeviceFloat, MatricesFromSharedMemory) {
  const auto element = [](int matrix, int row, int column) {
    return static_cast<std::uint32_t>(1000 + 64 * matrix + 8 * row + column);
  };
  Words4 rows[4][8];
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int row = 0; row < 8; ++row) {
      for (int i = 0; i < 4; ++i) {
        rows[matrix][row].w[i] = element(matrix, row, 2 * i) | element(matrix, row, 2 * i + 1)
                                                                   << 16;
      }
    }
  }
  std::uint32_t plain[kWarpThreads][4], transposed[kWarpThreads][4];
  run_block(kWarpThreads, 7, [&](EmulatedThread& t) {
    const Words4& own = rows[t.lane() / 8][t.lane() % 8];
    t.load_matrices(own, plain[t.lane()]);
    t.load_transposed(own, transposed[t.lane()]);
  });
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(plain[lane][i], element(i, row, column) | element(i, row, column + 1) << 16);
      EXPECT_EQ(transposed[lane][i], element(i, column, row) | element(i, column + 1, row) << 16);
    }
  }
}

TEST(DeviceFloat, CopiesArriveAtTheWait) {
  constexpr int kThreads = 2 * kWarpThreads;
  Words4 source[kThreads], shared[kThreads], before[kThreads], own[kThreads], other[kThreads];
  for (unsigned i = 0; i < kThreads; ++i) source[i] = {{i, i + 1, i + 2, i + 3}};
  Words4 left_out{{1, 2, 3, 4}};
  run_block(kThreads, 8, [&](EmulatedThread& t) {
    const int i = t.index();
    t.copy_async(shared[i], reinterpret_cast<const std::byte*>(&source[i]), true);
    if (i == 0) t.copy_async(left_out, nullptr, false);
    before[i] = shared[i];
    t.wait_copies();
    own[i] = shared[i];
    t.sync_block();
    other[i] = shared[kThreads - 1 - i];
  });
  for (unsigned i = 0; i < kThreads; ++i) {
    EXPECT_EQ(before[i].w[0], ~0U) << "nothing may rely on what a copy has not waited for";
    EXPECT_EQ(own[i].w[3], i + 3);
    EXPECT_EQ(other[i].w[1], kThreads - 1 - i + 1);
  }
  for (const std::uint32_t word : left_out.w) EXPECT_EQ(word, 0) << "zeros, and nothing is read";
}

TEST(DeviceFloat, GroupsOfCopiesArriveInTheirOrder) {
  constexpr int kGroups = 5;
  Words4 source[kGroups], shared[kGroups]{};
  for (unsigned i = 0; i < kGroups; ++i) source[i] = {{i, i, i, i}};
  int there[kGroups]{};
  run_block(kWarpThreads, 9, [&](EmulatedThread& t) {
    if (t.index() != 0) return;
    const auto count = [&] {
      int arrived = 0;
      for (int i = 0; i < kGroups; ++i) arrived += shared[i].w[0] == source[i].w[0] ? 1 : 0;
      return arrived;
    };
    for (int i = 0; i < kGroups; ++i) {
      t.copy_async(shared[i], reinterpret_cast<const std::byte*>(&source[i]), true);
      if (i == 2) t.close_copies();  // nothing more is in the third one
      if (i < 4) t.close_copies();
    }
    there[0] = count();
    t.wait_copies_but<3>();
    there[1] = count();
    t.wait_copies_but<1>();
    there[2] = count();
    t.wait_copies_but<0>();
    there[3] = count();
    t.wait_copies();
    there[4] = count();
  });
  EXPECT_EQ(there[0], 0);
  EXPECT_EQ(there[1], 2) << "of five groups, one without copies";
  EXPECT_EQ(there[2], 3);
  EXPECT_EQ(there[3], 4) << "the last copy is in no group yet";
  EXPECT_EQ(there[4], 5);
}

// Some order of threads shows it: without a barrier others see what was there before the wait.
TEST(DeviceFloat, CopiesNeedABarrierForOthers) {
  int missed = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Words4 source{{7, 7, 7, 7}}, shared{};
    run_block(2 * kWarpThreads, seed, [&](EmulatedThread& t) {
      if (t.index() == 0) {
        t.copy_async(shared, reinterpret_cast<const std::byte*>(&source), true);
        t.wait_copies();
      }
      if (shared.w[0] != 7) ++missed;
    });
  }
  EXPECT_GT(missed, 0);
}

TEST(DeviceFloat, PowersAndPairs) {
  EXPECT_EQ(power_of_two(minus_infinity()), 0);
  EXPECT_EQ(power_of_two(-3), 0.125F);
  EXPECT_EQ(pack_bf16(1.0F, -2.0F), 0xC0003F80);
  EXPECT_EQ(pack_bf16(1.00390625F, 1.01171875F), 0x3F823F80) << "half to even";
  EXPECT_EQ(pack_fp16(1.0F, -2.0F), 0xC0003C00);
  EXPECT_EQ(low_fp16(0xC0003C00), 1.0F);
  EXPECT_EQ(high_fp16(0xC0003C00), -2.0F);
}

}  // namespace
}  // namespace kvlane::gpu
