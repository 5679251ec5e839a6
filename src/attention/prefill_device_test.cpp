// Device code of prefill attention on emulated blocks of threads, against double precision.
// SPDX-License-Identifier: Apache-2.0
#include "attention/prefill_device.h"

#include <gtest/gtest.h>

#include <memory>

#include "attention/prefill_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane::prefill_fixture {
namespace {

using Rows = std::vector<std::uint16_t>;

constexpr std::uint16_t kPoison = 0xFFFF;

template <int kDim, int kTiles>
void attend(const Scene& scene, const PrefillBatch& batch, const PrefillUnit& unit,
            std::uint64_t seed) {
  const auto shared = std::make_unique<PrefillShared<kDim, kTiles>>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
  gpu::run_block(kPrefillWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
    if (scene.shape().window) {
      attend_tile<kDim, kTiles>(thread, batch, unit, *shared, scene.seen());
    } else {
      attend_tile<kDim, kTiles>(thread, batch, unit, *shared);
    }
  });
}

void attend(const PrefillKernelShape& kernel, const Scene& scene, const PrefillBatch& batch,
            const PrefillUnit& unit, std::uint64_t seed) {
  switch (kernel.dim * 8 + kernel.tiles) {
    case 64 * 8 + 2: return attend<64, 2>(scene, batch, unit, seed);
    case 128 * 8 + 2: return attend<128, 2>(scene, batch, unit, seed);
    case 256 * 8 + 1: return attend<256, 1>(scene, batch, unit, seed);
    default: FAIL() << "a kernel without a test";
  }
}

// [scene.rows()][heads][head_dim], poisoned before.
Rows run(const Scene& scene, const std::vector<PrefillUnit>& units, std::uint64_t seed = 1) {
  const PrefillKernelShape& kernel = *prefill_kernel(scene.shape().head_dim);
  std::vector<gpu::Words4> out(scene.rows() * scene.row_values() / 8, {{~0U, ~0U, ~0U, ~0U}});
  PrefillBatch batch = scene.batch();
  batch.out = reinterpret_cast<std::byte*>(out.data());
  for (const PrefillUnit& unit : units) attend(kernel, scene, batch, unit, seed++);
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(out.data());
  return {halves, halves + out.size() * 8};
}
Rows run(const Scene& scene, std::uint64_t seed = 1) { return run(scene, scene.units(), seed); }

TEST(PrefillDevice, EveryGroup) {
  for (const int group : {1, 2, 3, 4, 7, 8, 16, 29}) {
    const Scene scene({group, 1, 64, {{0, 50, 40}}}, group);
    scene.expect_right(run(scene), kPoison, 3);
    if (HasFatalFailure()) return;
  }
}

TEST(PrefillDevice, EveryHeadDim) {
  for (const int head_dim : {8, 16, 24, 64, 72, 80, 96, 120, 128, 136, 192, 248, 256}) {
    const Scene scene({3, 1, head_dim, {{0, 60, 11}}}, head_dim);
    scene.expect_right(run(scene), kPoison);
    if (HasFatalFailure()) return;
  }
}

// From the begin, in the middle of blocks, single rows, none; several KV heads, blocks in no order,
// NaN in all rows behind the last one and in other layers.
TEST(PrefillDevice, EveryPlaceInASequence) {
  for (const int head_dim : {64, 128}) {
    const Scene scene({4,
                       2,
                       head_dim,
                       {{0, 0, 1},
                        {1, 0, 64},
                        {2, 63, 1},
                        {3, 64, 1},
                        {4, 0, 0},
                        {5, 62, 3},
                        {6, 100, 65},
                        {7, 127, 0},
                        {8, 128, 17}}});
    scene.expect_right(run(scene), kPoison);
    if (HasFatalFailure()) return;
  }
}

// Rows that go on from states; blocks that they do not see as rows have none.
TEST(PrefillDevice, BehindSealedPages) {
  for (const KvWindow window :
       {KvWindow{0, 0}, KvWindow{1, 0}, KvWindow{0, 1}, KvWindow{2, 1}, KvWindow{7, 7}}) {
    for (const int head_dim : {64, 80, 256}) {
      const Scene scene(
          {3, 1, head_dim, {{0, 0, 70}, {1, 250, 80}, {2, 320, 1}, {3, 64, 2}}, window});
      scene.expect_right(run(scene), kPoison, 5);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PrefillDevice, NoChunkingOfAWindowChangesABit) {
  const SceneShape whole{5, 1, 64, {{0, 130, 200}}, KvWindow{1, 1}};
  const Scene scene(whole);
  const Rows all = run(scene);
  const PrefillShape shape = *prefill_shape(5, 1, 64);
  std::vector<PrefillUnit> units;
  for (const PrefillSpan& span : {PrefillSpan{130, 67, 0}, PrefillSpan{197, 133, 67}}) {
    const auto of_span = plan_prefill({&span, 1}, shape);
    units.insert(units.end(), of_span.begin(), of_span.end());
  }
  EXPECT_EQ(run(scene, units), all);
}

// More pairs than a unit has, with tokens of which some heads are in one and some in the next.
TEST(PrefillDevice, RowsOfManyUnits) {
  for (const auto& [heads, rows] : {std::pair{1, 300}, {5, 130}, {29, 23}}) {
    const Scene scene({heads, 1, 64, {{0, 30, rows}}});
    EXPECT_GT(scene.units().size(), 2);
    scene.expect_right(run(scene), kPoison, 7);
    if (HasFatalFailure()) return;
  }
}

TEST(PrefillDevice, NothingToDo) {
  EXPECT_TRUE(run(Scene({4, 2, 64, {}})).empty());
  const Scene scene({4, 2, 64, {{0, 0, 0}, {1, 99, 0}}});
  EXPECT_EQ(run(scene), Rows(2 * scene.row_values(), kPoison));
}

// What an earlier page left is negative, and a later token makes it weigh nothing; whatever is
// added then is -0. In one page, where nothing is left behind, the same sum is +0.
TEST(PrefillDevice, NoZeroHasASign) {
  constexpr int kPosition = 2 * kBlockTokens - 1;
  int zeros = 0;
  for (const float by : {1000.0F, -1000.0F}) {
    Scene scene({1, 1, 64, {{0, kPosition, 1}}});
    for (int token = 0; token <= kPosition; ++token) {
      scene.set_value(0, token, 0, token < kBlockTokens ? -1.0F : -0.0F);
    }
    scene.scale_key(0, kPosition - 1, 0, by);
    const Rows out = scene.rows_of(run(scene), 0);
    // One of both makes the token's score a large one.
    if (std::abs(scene.exact(0, 0, 0).exact[0]) > 1e-30) continue;
    ++zeros;
    EXPECT_EQ(out, Rows(64, 0));
  }
  EXPECT_EQ(zeros, 1);
}

TEST(PrefillDevice, NoOrderOfThreadsChangesABit) {
  for (const int head_dim : {64, 128, 256}) {
    const Scene scene({6, 2, head_dim, {{0, 100, 30}}});
    const Rows first = run(scene, 1);
    for (const std::uint64_t seed : {100, 200}) EXPECT_EQ(run(scene, seed), first) << seed;
  }
}

TEST(PrefillDevice, NoChunkingChangesABit) {
  constexpr int kRows = 150;
  for (const int heads : {1, 3}) {
    const Scene whole({heads, 1, 64, {{0, 0, kRows}}});
    const Rows right = whole.rows_of(run(whole), 0);
    whole.expect_right(run(whole), kPoison, 10);
    for (const std::vector<int>& chunks :
         {std::vector{64, 64, 22}, {1, 1, 62, 80, 5, 1}, {33, 117}}) {
      int position = 0;
      Rows together;
      for (const int rows : chunks) {
        const Scene one({heads, 1, 64, {{0, position, rows}}}, 1);
        const Rows own = one.rows_of(run(one), 0);
        together.insert(together.end(), own.begin(), own.end());
        position += rows;
      }
      EXPECT_EQ(together, right) << chunks.size() << " chunks";
    }
  }
}

TEST(PrefillDevice, NoCompanyChangesABit) {
  const std::vector<SpanShape> spans = {{0, 0, 70}, {1, 60, 9}, {2, 0, 1}};
  for (const int heads : {2, 6}) {
    const Scene together({heads, 2, 80, spans});
    const Rows all = run(together);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Scene alone({heads, 2, 80, {spans[i]}});
      EXPECT_EQ(alone.rows_of(run(alone), 0), together.rows_of(all, i)) << "span " << i;
    }
  }
}

// Pairs in other units, in other places of tiles, with others or alone.
TEST(PrefillDevice, NoCutOfUnitsChangesABit) {
  const Scene scene({5, 1, 64, {{0, 40, 30}}});
  const Rows right = run(scene);
  for (const int pairs : {1, 37, 128}) {
    std::vector<PrefillUnit> units;
    if (pairs == 1) {
      // Not all of them: a block of threads for each is slow here.
      for (int pair = 0; pair < 150; ++pair) {
        units.push_back({0, 0, pair, pair % 16 == 3 ? 1 : std::min(16, 150 - pair), 40, 0});
        pair += units.back().pairs - 1;
      }
    } else {
      units = plan_prefill(scene.spans(), {5, 1, pairs});
    }
    EXPECT_EQ(run(scene, units), right) << pairs;
  }
}

// One token has nearly all weight, first or last, far above and far below the others.
TEST(PrefillDevice, MaximaThatMoveFar) {
  for (const int where : {0, 40, 150}) {
    for (const float size : {30.0F, -30.0F}) {
      Scene scene({4, 1, 64, {{0, 120, 32}}});
      scene.scale_key(0, where, 0, size);
      scene.expect_right(run(scene), kPoison, 5);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PrefillShape, OneListOfKernels) {
  for (int head_dim = 8; head_dim <= kPrefillHeadDimMax; head_dim += 8) {
    const PrefillKernelShape* kernel = prefill_kernel(head_dim);
    ASSERT_NE(kernel, nullptr);
    EXPECT_EQ(kernel->dim, head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256);
    const Result<PrefillShape> shape = prefill_shape(8, 2, head_dim);
    ASSERT_TRUE(shape.ok());
    EXPECT_EQ(shape->heads, 8);
    EXPECT_EQ(shape->kv_heads, 2);
    EXPECT_EQ(shape->pairs, kernel->dim == 256 ? 64 : 128);
  }
  for (const int head_dim : {0, -8, 4, 12, 100, 264}) {
    EXPECT_EQ(prefill_kernel(head_dim), nullptr);
    EXPECT_EQ(prefill_shape(8, 2, head_dim).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(prefill_shape(8, 3, 64).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(prefill_shape(8, 0, 64).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::prefill_fixture
