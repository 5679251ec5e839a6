// Device code of norms and rotation of heads, into another basis too, on emulated blocks of
// threads: bit for bit what the CPU does where it neither norms nor changes the basis, else within
// a derived bound.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rotated_qkv_device.h"

#include <gtest/gtest.h>

#include <memory>

#include "gpu/emulated_block.h"
#include "ops/qkv_fixture.h"

namespace kvlane {
namespace {

using qkv_fixture::mixed_rows;
using qkv_fixture::Written;
using rows_fixture::kPoison16;
using QkvScene = qkv_fixture::Scene;

Written run(const QkvScene& scene, std::uint64_t seed = 1) {
  constexpr int kThreads = 64;
  Written written{std::vector<std::uint16_t>(scene.q_values(), kPoison16),
                  std::vector<std::uint16_t>(scene.pool_values(), kPoison16)};
  QkvRows rows = scene.rows();
  rows.q = reinterpret_cast<std::byte*>(written.q.data());
  rows.slabs = reinterpret_cast<std::byte*>(written.pool.data()) + scene.layer_offset();
  const int lanes_log2 = qkv_lanes_log2(rows.head_dim);
  if (rows.rotations != nullptr) {
    const auto shared = std::make_unique<TurnedHeads>();
    const int turned = rows.rows * (rows.heads / rows.kv_heads + 1);
    const int blocks = (turned - 1) / kTurnedHeads + 1;
    for (int i = 0; i < blocks * rows.kv_heads; ++i) {
      std::fill_n(&shared->x[0][0], sizeof(shared->x) / sizeof(float), rows_fixture::kPoison);
      gpu::run_block(kThreads, seed++, [&](gpu::EmulatedThread& thread) {
        write_turned_heads(thread, rows, i / blocks, i % blocks * kTurnedHeads, lanes_log2,
                           *shared);
      });
    }
    return written;
  }
  const int heads = rows.heads + 2 * rows.kv_heads;
  for (int row = 0; row < rows.rows; ++row) {
    for (int first = 0; first < heads; first += kThreads >> lanes_log2) {
      gpu::run_block(kThreads, seed++, [&](gpu::EmulatedThread& thread) {
        write_heads(thread, rows, row, first, lanes_log2);
      });
    }
  }
  return written;
}

void expect_right(const QkvScene& scene) {
  const Written written = run(scene);
  scene.expect_right(written.q, written.pool);
}

TEST(QkvDevice, EveryHeadDim) {
  for (int head_dim = 8; head_dim <= kQkvHeadDimMax; head_dim += 8) {
    for (const bool norm : {false, true}) {
      expect_right(QkvScene({3, 1, head_dim, norm, {{0, 5}, {0, -1}, {0, 66}}}, head_dim));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(QkvDevice, HeadsAndPlaces) {
  for (const int head_dim : {64, 80, 128}) {
    for (const bool norm : {false, true}) {
      expect_right(QkvScene({1, 1, head_dim, norm, {{0, 70}}}));
      expect_right(QkvScene({14, 2, head_dim, norm, mixed_rows()}));
      expect_right(QkvScene({6, 6, head_dim, norm, mixed_rows()}));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// As hidden states that come back have them.
TEST(QkvDevice, KeysAndValuesAlone) {
  for (const int head_dim : {8, 64, 80, 128, 256}) {
    for (const bool norm : {false, true}) {
      for (const bool turned : {false, true}) {
        expect_right(QkvScene({0, 1, head_dim, norm, {{0, 70}}, turned}));
        expect_right(QkvScene({0, 5, head_dim, norm, mixed_rows(), turned}));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(QkvDevice, EveryHeadDimIntoAnotherBasis) {
  for (int head_dim = 8; head_dim <= kQkvHeadDimMax; head_dim += 8) {
    for (const bool norm : {false, true}) {
      expect_right(QkvScene({3, 1, head_dim, norm, {{0, 5}, {0, -1}, {0, 66}}, true}, head_dim));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Groups that end within a block of threads, and ones that take several.
TEST(QkvDevice, GroupsIntoAnotherBasis) {
  for (const bool norm : {false, true}) {
    for (const int group : {1, 2, 7, 15, 29, 40}) {
      expect_right(QkvScene({2 * group, 2, 48, norm, mixed_rows(), true}, group));
      if (testing::Test::HasFatalFailure()) return;
    }
    expect_right(QkvScene({6, 6, 80, norm, mixed_rows(), true}));
  }
}

TEST(QkvDevice, NoOrderOfThreadsChangesABit) {
  const QkvScene scene({5, 2, 72, true, mixed_rows()});
  const Written first = run(scene);
  for (const std::uint64_t seed : {100, 200, 300}) EXPECT_TRUE(run(scene, seed) == first);
  const QkvScene turned({10, 2, 72, true, mixed_rows(), true});
  const Written also = run(turned);
  for (const std::uint64_t seed : {100, 200, 300}) EXPECT_TRUE(run(turned, seed) == also);
}

TEST(QkvDevice, LanesOfAHead) {
  for (int head_dim = 8; head_dim <= kQkvHeadDimMax; head_dim += 8) {
    const int lanes = 1 << qkv_lanes_log2(head_dim);
    EXPECT_GE(lanes * 8, head_dim);
    EXPECT_LT(lanes * 4, head_dim);
    EXPECT_LE(lanes, gpu::kWarpThreads);
  }
}

TEST(QkvDevice, LauncherRefusesWhatItCannotDo) {
  const QkvScene scene({4, 2, 64, true, {{0, 3}}});
  alignas(16) std::byte memory[16];
  QkvRows right = scene.rows();
  auto* const floats = reinterpret_cast<const float*>(memory);
  right.product = right.q_norm = right.k_norm = right.angles = floats;
  right.q = right.slabs = memory;
  ASSERT_TRUE(check_rows(right).ok());
  QkvRows without_queries = right;
  without_queries.heads = 0;
  without_queries.q = nullptr;
  EXPECT_TRUE(check_rows(without_queries).ok());
  const auto expect_refused = [&](auto change) {
    QkvRows rows = right;
    change(rows);
    EXPECT_EQ(check_rows(rows).code(), Code::kInvalidArgument);
  };
  for (const int head_dim : {0, -8, 4, 12, 100, kQkvHeadDimMax + 8}) {
    expect_refused([&](QkvRows& rows) { rows.head_dim = head_dim; });
  }
  expect_refused([](QkvRows& rows) { rows.rows = -1; });
  expect_refused([](QkvRows& rows) { rows.heads = -1; });
  expect_refused([](QkvRows& rows) { rows.q = nullptr; });
  expect_refused([](QkvRows& rows) { rows.kv_heads = 0; });
  expect_refused([](QkvRows& rows) { rows.k_norm = nullptr; });
  expect_refused([](QkvRows& rows) { rows.q_norm = nullptr; });
  expect_refused([&](QkvRows& rows) { rows.q_norm = floats + 1; });
  expect_refused([&](QkvRows& rows) { rows.product = floats + 1; });
  expect_refused([&](QkvRows& rows) { rows.angles = nullptr; });
  expect_refused([&](QkvRows& rows) { rows.rotations = floats + 1; });
  expect_refused([&](QkvRows& rows) {
    rows.rotations = floats;
    rows.heads = 5;
  });
  expect_refused([](QkvRows& rows) { rows.positions = nullptr; });
  expect_refused([](QkvRows& rows) { rows.sequences = nullptr; });
  expect_refused([](QkvRows& rows) { rows.tables = nullptr; });
  expect_refused([&](QkvRows& rows) { rows.q = memory + 8; });
  expect_refused([&](QkvRows& rows) { rows.slabs = memory + 8; });
  expect_refused([](QkvRows& rows) { rows.block_bytes += 8; });
}

}  // namespace
}  // namespace kvlane
