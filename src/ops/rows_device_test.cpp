// Device code of row operations on emulated blocks of threads, against the CPU's: bit for bit, but
// for norms, whose sums have another order.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rows_device.h"

#include <gtest/gtest.h>

#include "gpu/emulated_block.h"
#include "ops/rows_fixture.h"

namespace kvlane {
namespace {

using rows_fixture::EmbedScene;
using rows_fixture::kPoison;
using rows_fixture::kPoison16;
using rows_fixture::Normed;
using rows_fixture::NormScene;
using rows_fixture::SiluScene;

constexpr int kRowThreads = 64;

// `each` for all parts of rows that blocks of kThreads have.
template <class Each>
void run_parts(int rows, int length, std::uint64_t seed, const Each& each) {
  for (int row = 0; row < rows; ++row) {
    for (int part = 0; part * kRowThreads * kRowValues < length; ++part) {
      gpu::run_block(kRowThreads, seed++,
                     [&](gpu::EmulatedThread& thread) { each(thread, row, part); });
    }
  }
}

std::vector<float> run(const EmbedScene& scene) {
  std::vector<float> residual(scene.values(), kPoison);
  EmbedRows rows = scene.rows();
  rows.residual = residual.data();
  run_parts(rows.rows, rows.hidden, 1, [&](gpu::EmulatedThread& thread, int row, int part) {
    embed_values(thread, rows, row, part);
  });
  return residual;
}

std::vector<std::uint16_t> run(const SiluScene& scene) {
  std::vector<std::uint16_t> out(scene.values(), kPoison16);
  SiluRows rows = scene.rows();
  rows.out = reinterpret_cast<std::byte*>(out.data());
  run_parts(rows.rows, rows.ffn, 1, [&](gpu::EmulatedThread& thread, int row, int part) {
    silu_values(thread, rows, row, part);
  });
  return out;
}

template <int kParts>
void run_norm(const NormRows& rows, std::uint64_t seed) {
  for (int row = 0; row < rows.rows; ++row) {
    NormShared shared;
    std::memset(static_cast<void*>(&shared), 0xFF, sizeof(shared));
    gpu::run_block(norm_threads(rows.n), seed++, [&](gpu::EmulatedThread& thread) {
      norm_row<kParts>(thread, rows, row, shared);
    });
  }
}

Normed run(const NormScene& scene, std::uint64_t seed = 1) {
  Normed normed{scene.residual(), std::vector<std::uint16_t>(scene.out_values(), kPoison16)};
  NormRows rows = scene.rows();
  rows.residual = normed.residual.data();
  if (!normed.out.empty()) rows.out = reinterpret_cast<std::byte*>(normed.out.data());
  switch (norm_parts(rows.n)) {
    case 1: run_norm<1>(rows, seed); break;
    case 2: run_norm<2>(rows, seed); break;
    case 4: run_norm<4>(rows, seed); break;
    default: ADD_FAILURE() << "a kernel without a test";
  }
  return normed;
}

void expect_right(const NormScene& scene) {
  const Normed normed = run(scene);
  scene.expect_right(normed.residual, normed.out);
}

TEST(RowsDevice, EmbeddingsAreWidened) {
  for (const int hidden : {8, 248, 256, 264, 1000}) {
    for (const int rows : {1, 6}) {
      const EmbedScene scene(rows, hidden);
      scene.expect_right(run(scene));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(RowsDevice, ActivationsAreThoseOfTheCpu) {
  for (const int ffn : {8, 248, 256, 264, 1000}) {
    for (const int rows : {1, 3}) {
      const SiluScene scene(rows, ffn);
      const std::vector<std::uint16_t> out = run(scene);
      scene.expect_right(out);
      EXPECT_EQ(out, scene.on_cpu());
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(RowsDevice, NormsOfEveryLength) {
  for (const int n : {8, 16, 120, 128, 136, 1000, 1016, 1024, 1032, 2048, 3000, 4088, 4096, 4104,
                      5120, 8192, 16376, 16384}) {
    expect_right(NormScene({n > 4096 ? 2 : 4, n}, static_cast<unsigned>(n)));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(RowsDevice, NormsWithAndWithoutSums) {
  for (const int n : {40, 2056, 4104}) {
    for (const bool add : {false, true}) {
      for (const bool norm : {false, true}) {
        expect_right(NormScene({5, n, add, norm}));
        expect_right(NormScene({5, n, add, norm, {4, 0, -1, 3}}));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  // Without a sum a row may be taken more than once.
  expect_right(NormScene({3, 64, false, true, {2, 2, 0, 2}}));
}

TEST(RowsDevice, NoOrderOfThreadsChangesABit) {
  for (const int n : {512, 4000, 6000}) {
    const NormScene scene({2, n});
    const Normed first = run(scene);
    for (const std::uint64_t seed : {100, 200, 300}) {
      EXPECT_EQ(run(scene, seed).out, first.out) << "seed " << seed;
    }
  }
}

TEST(RowsDevice, NotANumberStaysInItsRow) {
  const NormScene scene({3, 264, false});
  Normed normed{scene.residual(), std::vector<std::uint16_t>(scene.out_values(), kPoison16)};
  normed.residual[264 + 100] = kPoison;
  NormRows rows = scene.rows();
  rows.residual = normed.residual.data();
  rows.out = reinterpret_cast<std::byte*>(normed.out.data());
  run_norm<1>(rows, 1);
  for (std::size_t i = 0; i < normed.out.size(); ++i) {
    EXPECT_EQ(std::isnan(to_float(bf16{normed.out[i]})), i / 264 == 1) << i;
  }
}

// No more threads than a row has fours, and registers for all of it.
TEST(RowsDevice, ThreadsOfANorm) {
  for (int n = 8; n <= kNormValuesMax; n += 8) {
    const int threads = norm_threads(n), parts = norm_parts(n);
    ASSERT_EQ(threads % gpu::kWarpThreads, 0);
    ASSERT_GE(threads * parts * kRowValues, n);
    ASSERT_LT((threads - gpu::kWarpThreads) * parts * kRowValues, n);
    ASSERT_LE(threads, norm_threads_max(parts));
  }
  EXPECT_EQ(norm_threads(4096), 512);
  EXPECT_EQ(norm_threads(kNormValuesMax), 1024);
}

template <class Rows, class Change>
void expect_refused(const Rows& right, const Change& change) {
  Rows rows = right;
  change(rows);
  const Status status = check_rows(rows);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_FALSE(status.message().empty());
}

TEST(RowsDevice, LaunchersRefuseWhatTheyCannotDo) {
  alignas(16) std::byte memory[16];
  auto* const floats = reinterpret_cast<float*>(memory);
  const auto* const numbers = reinterpret_cast<const std::int32_t*>(memory);
  float* const between = floats + 1;

  const EmbedRows embed{memory, numbers, 1, 64, floats};
  EXPECT_TRUE(check_rows(embed).ok());
  for (const int hidden : {0, -8, 4, 12, 100}) {
    expect_refused(embed, [&](EmbedRows& rows) { rows.hidden = hidden; });
  }
  expect_refused(embed, [&](EmbedRows& rows) { rows.rows = -1; });
  expect_refused(embed, [&](EmbedRows& rows) { rows.table = memory + 8; });
  expect_refused(embed, [&](EmbedRows& rows) { rows.tokens = nullptr; });
  expect_refused(embed, [&](EmbedRows& rows) { rows.residual = between; });

  const NormRows norm{.residual = floats, .weight = floats, .rows = 1, .n = 64, .out = memory};
  EXPECT_TRUE(check_rows(norm).ok());
  for (const int n : {0, -8, 4, 12, 100, kNormValuesMax + 8}) {
    expect_refused(norm, [&](NormRows& rows) { rows.n = n; });
  }
  expect_refused(norm, [&](NormRows& rows) { rows.rows = -1; });
  expect_refused(norm, [&](NormRows& rows) { rows.residual = nullptr; });
  expect_refused(norm, [&](NormRows& rows) { rows.add = between; });
  expect_refused(norm, [&](NormRows& rows) { rows.weight = nullptr; });
  expect_refused(norm, [&](NormRows& rows) { rows.out = memory + 8; });
  EXPECT_TRUE(check_rows(NormRows{.residual = floats, .rows = 1, .n = 64}).ok());

  const SiluRows silu{floats, 1, 64, memory};
  EXPECT_TRUE(check_rows(silu).ok());
  expect_refused(silu, [&](SiluRows& rows) { rows.ffn = 100; });
  expect_refused(silu, [&](SiluRows& rows) { rows.gate_up = between; });
  expect_refused(silu, [&](SiluRows& rows) { rows.out = nullptr; });
}

}  // namespace
}  // namespace kvlane
