// Device code of prefill attention on codes on emulated blocks of threads, against double
// precision.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_prefill_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "attention/hack_prefill_hopper.h"
#include "attention/hack_prefill_hopper_device.h"
#include "attention/hack_prepared_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane::hack_fixture {
namespace {

// That of all GPUs, and that of sm_90a.
enum class Kernel : std::uint8_t { kAll, kHopper };

// Those that there are.
std::vector<Kernel> kernels_for(const HackKind& kind, int head_dim) {
  if (with_hack_hopper_kernel(kind, head_dim, [](auto) {})) return {Kernel::kAll, Kernel::kHopper};
  return {Kernel::kAll};
}

void attend(Kernel kernel, const HackKind& kind, const HackPrefillBatch& batch,
            const PrefillUnit& unit, std::uint64_t seed) {
  if (kernel == Kernel::kHopper) {
    with_hack_hopper_kernel(kind, batch.head_dim, [&](auto known) {
      using Known = decltype(known);
      const auto shared = std::make_unique<HackHopperShared<Known::kDim, Known::kBits>>();
      std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
      gpu::run_block(kHackHopperThreads, seed, [&](gpu::EmulatedThread& thread) {
        attend_coded_tile_on_hopper<Known::kDim, Known::kBits>(thread, batch, unit, *shared);
      });
    });
    return;
  }
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
struct PrefillOutcome {
  std::vector<float> max, sum, out;
  friend bool operator==(const PrefillOutcome&, const PrefillOutcome&) = default;
};

std::vector<PrefillUnit> units_of(const Scene& scene) {
  const SceneShape& shape = scene.shape();
  return plan_prefill(scene.spans(),
                      *hack_prefill_shape(shape.kind, shape.heads, shape.kv_heads, shape.head_dim));
}

PrefillOutcome run(Kernel kernel, const Scene& scene, const std::vector<PrefillUnit>& units,
                   std::uint64_t seed = 1) {
  const SceneShape& shape = scene.shape();
  Prepared prepared(scene, seed);
  PrefillOutcome o{std::vector<float>(scene.rows(), kPoisoned),
                   std::vector<float>(scene.rows(), kPoisoned),
                   std::vector<float>(scene.rows() * shape.head_dim, kPoisoned)};
  HackPrefillBatch batch = scene.prefill_batch();
  batch.queries = prepared.pointers();
  batch.max = o.max.data();
  batch.sum = o.sum.data();
  batch.out = o.out.data();
  for (const PrefillUnit& unit : units) attend(kernel, shape.kind, batch, unit, seed++);
  return o;
}

// By all kernels that there are.
void expect_right(const Scene& scene) {
  const int d = scene.shape().head_dim;
  for (const Kernel kernel : kernels_for(scene.shape().kind, d)) {
    PrefillOutcome outcome = run(kernel, scene, units_of(scene));
    for (std::size_t i = 0; i < outcome.out.size(); ++i) {
      const float sum = outcome.sum[i / d];
      if (sum != 0) outcome.out[i] /= sum;
    }
    const bool on_hopper = kernel == Kernel::kHopper;
    SCOPED_TRACE(on_hopper ? "the kernel of sm_90a" : "the kernel of all GPUs");
    scene.expect_right(outcome.out, outcome.max, outcome.sum,
                       on_hopper ? WeightsIn::kBinary16 : WeightsIn::kEightBits);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(HackPrefillDevice, EveryKindAndHeadDim) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : {16, 64, 80, 128, 144, 256}) {
      const Scene scene({kind, kind.partition == 0, 2, 1, head_dim, {3}, {{3 * 64 + 5, 3}}},
                        head_dim);
      expect_right(scene);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HackPrefillDevice, EveryGroup) {
  for (const int group : {1, 2, 3, 5, 8, 16, 29}) {
    const Scene scene({{2, 2, 0}, true, group, 1, 64, {3}, {{120, 20}}}, group);
    expect_right(scene);
    if (HasFatalFailure()) return;
  }
}

// Rows of one unit whose own blocks differ, those that see no page, more pages than means are
// multiplied of at once, several KV heads, none.
TEST(HackPrefillDevice, EveryPlaceInASequence) {
  struct Case {
    HackKind kind;
    int head_dim;
  };
  for (const Case& one : {Case{{2, 2, 0}, 64}, Case{{4, 4, 0}, 128}, Case{{2, 2, 64}, 64}}) {
    const Scene scene({one.kind,
                       true,
                       4,
                       2,
                       one.head_dim,
                       {0, 2, 1, 3, 9, 18},
                       {{0, 20}, {60, 70}, {64, 1}, {127, 66}, {9 * 64, 2}, {18 * 64 + 63, 1}}});
    expect_right(scene);
    if (HasFatalFailure()) return;
  }
}

TEST(HackPrefillDevice, BlocksOfTheWindowAreLeftOut) {
  for (const KvWindow window : {KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}, KvWindow{9, 9}}) {
    const Scene scene({{2, 2, 0}, true, 2, 1, 64, {5}, {{4 * 64 - 10, 80}}, window});
    expect_right(scene);
    if (HasFatalFailure()) return;
  }
}

// One token has nearly all weight, or all tokens have about the same.
TEST(HackPrefillDevice, SharpAndFlatWeights) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 64}}) {
    for (const float size : {0.0F, 0.01F, 30.0F}) {
      const Scene scene({kind, false, 2, 1, 64, {4}, {{4 * 64, 3}}}, 3, size);
      expect_right(scene);
      if (HasFatalFailure()) return;
    }
  }
}

// V of a page is opened for all rows of a unit: those that do not see it must not learn of it, even
// where a page that no encoder makes would be an infinity in 16 bits.
TEST(HackPrefillDevice, WhatIsNotSeenIsNotFelt) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{4, 4, 0}}) {
    Scene scene({kind, true, 1, 1, 64, {3}, {{2 * 64 + 60, 10}}});  // four rows see two pages
    const PrefillOutcome before = run(Kernel::kHopper, scene, units_of(scene));
    auto* const page = const_cast<std::byte*>(scene.page(0, 2, 0));
    const std::uint16_t most = 0x7BFF;  // 65,504
    for (int token = 0; token < kBlockTokens; ++token) {
      std::memcpy(page + scene.hack().layout.v_metadata + hack::scales_offset(64) + 2 * token,
                  &most, sizeof(most));
    }
    const PrefillOutcome after = run(Kernel::kHopper, scene, units_of(scene));
    for (std::size_t row = 0; row < scene.rows(); ++row) {
      EXPECT_EQ(after.max[row], before.max[row]) << "row " << row;
      EXPECT_EQ(after.sum[row], before.sum[row]) << "row " << row;
      for (std::size_t i = 64 * row; i < 64 * row + 64; ++i) {
        ASSERT_TRUE(std::isfinite(after.out[i])) << "row " << row;
        if (row < 4) {
          ASSERT_EQ(after.out[i], before.out[i]) << "row " << row;
        }
      }
    }
  }
}

TEST(HackPrefillDevice, NoOrderOfThreadsChangesABit) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 32}}) {
    const Scene scene({kind, true, 3, 1, 96, {10}, {{9 * 64 + 50, 40}}});
    for (const Kernel kernel : kernels_for(kind, 96)) {
      const PrefillOutcome first = run(kernel, scene, units_of(scene));
      for (const std::uint64_t seed : {100, 200, 300, 400, 500, 600, 700, 800}) {
        EXPECT_TRUE(run(kernel, scene, units_of(scene), seed) == first) << "seed " << seed;
      }
    }
  }
}

// A prompt in one part and in three.
TEST(HackPrefillDevice, NoChunkChangesABit) {
  const Scene scene({{2, 2, 0}, true, 5, 1, 64, {4}, {{40, 200}}});
  const PrefillShape shape = *hack_prefill_shape({2, 2, 0}, 5, 1, 64);
  std::vector<PrefillUnit> units;
  for (const PrefillSpan& span :
       {PrefillSpan{40, 33, 0}, PrefillSpan{73, 100, 33}, PrefillSpan{173, 67, 133}}) {
    const auto of_span = plan_prefill({&span, 1}, shape);
    units.insert(units.end(), of_span.begin(), of_span.end());
  }
  for (const Kernel kernel : kernels_for({2, 2, 0}, 64)) {
    EXPECT_TRUE(run(kernel, scene, units) == run(kernel, scene, units_of(scene)));
  }
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
}  // namespace kvlane::hack_fixture
