// Device code of prefill attention on codes on emulated blocks of threads, against double
// precision.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_prefill_device.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "attention/hack_prefill_gpu.h"
#include "attention/hack_prepared_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane {
namespace {

using hack_fixture::Prepared;
using hack_fixture::Scene;
using hack_fixture::SceneShape;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

void attend(const HackKind& kind, const HackPrefillBatch& batch, const PrefillUnit& unit,
            std::uint64_t seed) {
  bool there = false;
  with_hack_prefill_kernel(kind.partition, batch.head_dim, [&](auto known) {
    constexpr int kDim = decltype(known)::kDim;
    constexpr int kTiles = decltype(known)::kTiles;
    constexpr int kPart = decltype(known)::kPartition;
    there = true;
    const auto shared = std::make_unique<HackPrefillShared<kDim, kTiles>>();
    std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
    std::vector<gpu::Words4> pages(hack_prefill_pages_bytes(batch.layout, kDim) / 16,
                                   {{~0U, ~0U, ~0U, ~0U}});
    gpu::run_block(kPrefillWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
      attend_coded_tile<kDim, kTiles, kPart>(thread, batch, unit, *shared, pages.data());
    });
  });
  ASSERT_TRUE(there) << "a kind without a kernel";
}

// States, of all pairs.
struct Outcome {
  std::vector<float> max, sum, out;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::vector<PrefillUnit> units_of(const Scene& scene) {
  const SceneShape& shape = scene.shape();
  return plan_prefill(scene.spans(),
                      *hack_prefill_shape(shape.kind, shape.heads, shape.kv_heads, shape.head_dim));
}

Outcome run(const Scene& scene, const std::vector<PrefillUnit>& units, std::uint64_t seed = 1) {
  const SceneShape& shape = scene.shape();
  Prepared prepared(scene, seed);
  Outcome o{std::vector<float>(scene.rows(), kPoison), std::vector<float>(scene.rows(), kPoison),
            std::vector<float>(scene.rows() * shape.head_dim, kPoison)};
  HackPrefillBatch batch = scene.prefill_batch();
  batch.queries = prepared.pointers();
  batch.max = o.max.data();
  batch.sum = o.sum.data();
  batch.out = o.out.data();
  for (const PrefillUnit& unit : units) attend(shape.kind, batch, unit, seed++);
  return o;
}
Outcome run(const Scene& scene, std::uint64_t seed = 1) {
  return run(scene, units_of(scene), seed);
}

void expect_right(const Scene& scene, Outcome outcome) {
  const int d = scene.shape().head_dim;
  for (std::size_t i = 0; i < outcome.out.size(); ++i) {
    const float sum = outcome.sum[i / d];
    if (sum != 0) outcome.out[i] /= sum;
  }
  scene.expect_right(outcome.out, outcome.max, outcome.sum);
}

TEST(HackPrefillDevice, EveryKindAndHeadDim) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : {16, 64, 80, 128, 144, 256}) {
      const Scene scene({kind, kind.partition == 0, 2, 1, head_dim, {3}, {{3 * 64 + 5, 3}}},
                        head_dim);
      expect_right(scene, run(scene));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HackPrefillDevice, EveryGroup) {
  for (const int group : {1, 2, 3, 5, 8, 16, 29}) {
    const Scene scene({{2, 2, 0}, true, group, 1, 64, {3}, {{120, 20}}}, group);
    expect_right(scene, run(scene));
    if (HasFatalFailure()) return;
  }
}

// Rows of one unit whose own blocks differ, those that see no page, more pages than means are
// multiplied of at once, several KV heads, none.
TEST(HackPrefillDevice, EveryPlaceInASequence) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 64}}) {
    const Scene scene({kind,
                       true,
                       4,
                       2,
                       64,
                       {0, 2, 1, 3, 9, 18},
                       {{0, 20}, {60, 70}, {64, 1}, {127, 66}, {9 * 64, 2}, {18 * 64 + 63, 1}}});
    expect_right(scene, run(scene));
    if (HasFatalFailure()) return;
  }
}

TEST(HackPrefillDevice, BlocksOfTheWindowAreLeftOut) {
  for (const KvWindow window : {KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}, KvWindow{9, 9}}) {
    const Scene scene({{2, 2, 0}, true, 2, 1, 64, {5}, {{4 * 64 - 10, 80}}, window});
    expect_right(scene, run(scene));
    if (HasFatalFailure()) return;
  }
}

// One token has nearly all weight, or all tokens have about the same.
TEST(HackPrefillDevice, SharpAndFlatWeights) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 64}}) {
    for (const float size : {0.0F, 0.01F, 30.0F}) {
      const Scene scene({kind, false, 2, 1, 64, {4}, {{4 * 64, 3}}}, 3, size);
      expect_right(scene, run(scene));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HackPrefillDevice, NoOrderOfThreadsChangesABit) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 32}}) {
    const Scene scene({kind, true, 3, 1, 96, {10}, {{9 * 64 + 50, 40}}});
    const Outcome first = run(scene);
    for (const std::uint64_t seed : {100, 200}) {
      EXPECT_TRUE(run(scene, seed) == first) << "seed " << seed;
    }
  }
}

// A prompt in one part and in three.
TEST(HackPrefillDevice, NoChunkChangesABit) {
  const Scene scene({{2, 2, 0}, true, 5, 1, 64, {4}, {{40, 200}}});
  const Outcome whole = run(scene);
  const PrefillShape shape = *hack_prefill_shape({2, 2, 0}, 5, 1, 64);
  std::vector<PrefillUnit> units;
  for (const PrefillSpan& span :
       {PrefillSpan{40, 33, 0}, PrefillSpan{73, 100, 33}, PrefillSpan{173, 67, 133}}) {
    const auto of_span = plan_prefill({&span, 1}, shape);
    units.insert(units.end(), of_span.begin(), of_span.end());
  }
  EXPECT_TRUE(run(scene, units) == whole);
}

TEST(HackPrefillShape, WhatThereIsNoKernelFor) {
  for (const HackKind& kind : kHackKinds) {
    EXPECT_EQ(hack_prefill_shape(kind, 8, 2, 128)->pairs, prefill_shape(8, 2, 128)->pairs);
  }
  EXPECT_EQ(hack_prefill_shape({8, 8, 0}, 8, 2, 128).status().code(), Code::kInvalidArgument);
  for (const int head_dim : {0, 8, 24, 272}) {
    EXPECT_EQ(hack_prefill_shape({2, 2, 0}, 8, 2, head_dim).status().code(),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(hack_prefill_shape({2, 2, 0}, 8, 3, 64).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
