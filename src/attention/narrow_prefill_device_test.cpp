// Device code of prefill attention over narrow pages on emulated blocks of threads, against double
// precision.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_prefill_device.h"

#include <gtest/gtest.h>

#include <memory>

#include "attention/narrow_attention_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane::narrow_fixture {
namespace {

template <int kDim, int kTiles>
void attend(const NarrowPrefillBatch& batch, const PrefillUnit& unit, std::uint64_t seed) {
  const auto shared = std::make_unique<PrefillShared<kDim, kTiles>>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
  gpu::run_block(kPrefillWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
    attend_narrow_tile<kDim, kTiles>(thread, batch, unit, *shared);
  });
}

// States, of all pairs.
struct PrefillOutcome {
  std::vector<float> max, sum, out;
};
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool operator==(const PrefillOutcome& a, const PrefillOutcome& b) {
  return same(a.max, b.max) && same(a.sum, b.sum) && same(a.out, b.out);
}

PrefillShape prefill_shape_of(const Scene& scene) {
  const auto& shape = scene.shape();
  return *prefill_shape(shape.heads(), shape.kv_heads(), shape.head_dim);
}

PrefillOutcome run(const Scene& scene, const std::vector<PrefillUnit>& units,
                   std::uint64_t seed = 1) {
  const std::size_t values = scene.rows() * scene.shape().head_dim;
  const std::vector<NarrowHead> heads = scene.heads();
  PrefillOutcome o{
      std::vector<float>(scene.rows(), kPoison), std::vector<float>(scene.rows(), kPoison), {}};
  // In memory of Floats4, for accesses of 16 bytes.
  std::vector<gpu::Floats4> out(values / 4, {{kPoison, kPoison, kPoison, kPoison}});
  NarrowPrefillBatch batch = scene.prefill_batch();
  batch.pages = heads.data();
  batch.max = o.max.data();
  batch.sum = o.sum.data();
  batch.out = reinterpret_cast<float*>(out.data());
  for (const PrefillUnit& unit : units) {
    switch (prefill_kernel(scene.width_max())->dim) {
      case 64: attend<64, 2>(batch, unit, seed++); break;
      case 128: attend<128, 2>(batch, unit, seed++); break;
      default: attend<256, 1>(batch, unit, seed++);
    }
  }
  o.out.assign(batch.out, batch.out + values);
  return o;
}
PrefillOutcome run(const Scene& scene, std::uint64_t seed = 1) {
  return run(scene, plan_prefill(scene.prefill_spans(), prefill_shape_of(scene)), seed);
}

void expect_right(const Scene& scene) {
  const PrefillOutcome outcome = run(scene);
  scene.expect_right(outcome.out, &outcome.max, &outcome.sum);
  // Behind the rows of a span nothing is written.
  const std::size_t heads = scene.shape().heads();
  for (const PrefillSpan& span : scene.prefill_spans()) {
    const std::size_t row = (span.first_row + span.rows) * heads;
    for (std::size_t i = row; i < row + heads; ++i) ASSERT_TRUE(std::isnan(outcome.sum[i]));
  }
}

TEST(NarrowPrefillDevice, EveryWidthOfKAndV) {
  for (int width = 16; width <= 256; width += 16) {
    const int other = width % 64 == 0 ? width : 272 - width;
    const int head_dim = std::max(width, other);
    expect_right(
        Scene({2, {{width, other}, {16, width}}, head_dim, {3}, 4, {{3 * 64 + 5, 3}}}, width));
    if (HasFatalFailure()) return;
  }
}

TEST(NarrowPrefillDevice, EveryGroup) {
  for (const int group : {1, 2, 3, 5, 8, 16, 29}) {
    expect_right(Scene({group, {{48, 80}}, 96, {3}, 4, {{120, 20}}}, group));
    if (HasFatalFailure()) return;
  }
}

// Rows of one unit whose own blocks differ, those that see no page, several KV heads, none; heads
// that are much narrower than head_dim.
TEST(NarrowPrefillDevice, EveryPlaceInASequence) {
  for (const int head_dim : {64, 160}) {
    expect_right(Scene({2,
                        {{48, 16}, {16, 64}},
                        head_dim,
                        {0, 2, 1, 3, 9},
                        4,
                        {{0, 20}, {60, 70}, {64, 1}, {127, 66}, {9 * 64, 2}}}));
    if (HasFatalFailure()) return;
  }
}

TEST(NarrowPrefillDevice, BlocksOfTheWindowAreLeftOut) {
  for (const KvWindow window : {KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}, KvWindow{9, 9}}) {
    expect_right(Scene({2, {{32, 48}}, 64, {5}, 4, {{4 * 64 - 10, 80}}, window}));
    if (HasFatalFailure()) return;
  }
}

// One token has nearly all weight, or all tokens have about the same.
TEST(NarrowPrefillDevice, SharpAndFlatWeights) {
  for (const float size : {0.0F, 0.01F, 100.0F}) {
    expect_right(Scene({2, {{48, 64}}, 64, {4}, size, {{4 * 64, 3}}}, 3));
    if (HasFatalFailure()) return;
  }
}

TEST(NarrowPrefillDevice, NoOrderOfThreadsChangesABit) {
  const Scene scene({3, {{96, 80}, {16, 112}}, 128, {5}, 4, {{4 * 64 + 50, 40}}});
  const PrefillOutcome first = run(scene);
  for (const std::uint64_t seed : {100, 200}) {
    EXPECT_TRUE(run(scene, seed) == first) << "seed " << seed;
  }
}

// A prompt in one part and in three.
TEST(NarrowPrefillDevice, NoChunkChangesABit) {
  const Scene scene({5, {{32, 64}}, 64, {4}, 4, {{40, 200}}});
  const PrefillOutcome whole = run(scene);
  std::vector<PrefillUnit> units;
  for (const PrefillSpan& span :
       {PrefillSpan{40, 33, 0}, PrefillSpan{73, 100, 33}, PrefillSpan{173, 67, 133}}) {
    const auto of_span = plan_prefill({&span, 1}, prefill_shape_of(scene));
    units.insert(units.end(), of_span.begin(), of_span.end());
  }
  EXPECT_TRUE(run(scene, units) == whole);
}

TEST(NarrowPrefillShape, WhatThereIsNoKernelFor) {
  const Scene scene({2, {{64, 64}}, 64, {1}, 4, {{64, 1}}});
  const NarrowPrefillBatch right = scene.prefill_batch();
  EXPECT_TRUE(check_narrow_prefill(right, 64).ok());
  EXPECT_TRUE(check_narrow_prefill(right, 16).ok());
  const auto refused = [](const NarrowPrefillBatch& batch, int width_max) {
    return check_narrow_prefill(batch, width_max).code() == Code::kInvalidArgument;
  };
  for (const int width : {0, -16, 24, 80}) EXPECT_TRUE(refused(right, width));
  NarrowPrefillBatch batch = right;
  batch.head_dim = 264;
  EXPECT_TRUE(refused(batch, 64));
  batch = right;
  batch.kv_heads = 3;
  EXPECT_TRUE(refused(batch, 64));
  batch = right;
  batch.slabs += 8;
  EXPECT_TRUE(refused(batch, 64));
  batch = right;
  batch.block_bytes += 8;
  EXPECT_TRUE(refused(batch, 64));
}

}  // namespace
}  // namespace kvlane::narrow_fixture
