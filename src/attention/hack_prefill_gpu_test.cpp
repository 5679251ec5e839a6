// Prefill attention on codes on a GPU against double precision, with poison around all that it
// writes. Skipped where no GPU is; there hack_prefill_device_test.cpp runs the same device code on
// emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_prefill_hopper.h"

#include <gtest/gtest.h>

#include "attention/hack_gpu_fixture.h"
#include "base/test_results.h"

namespace kvlane::hack_fixture {
namespace {

using gpu_fixture::check;
using gpu_fixture::values_of;
using gpu_fixture::view;

class HackPrefillGpuTest : public HackGpuTest {
 protected:
  struct States {
    std::vector<float> max, sum, out;
    friend bool operator==(const States&, const States&) = default;
  };

  States run(const Scene& scene, Around around = Around::kPoison) {
    const auto& shape = scene.shape();
    const std::vector<PrefillUnit> plan = plan_prefill(
        scene.spans(),
        take(hack_prefill_shape(shape.kind, shape.heads, shape.kv_heads, shape.head_dim)));
    const Queries queries = prepare(scene, around);
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const auto poisoned = [&](std::size_t floats) {
      return on_device(Bytes(floats * sizeof(float), DeviceBytes::kPoison));
    };
    const DeviceBytes units = on_device(view(plan)), pool = on_device(view(scene.pool()));
    const DeviceBytes tables = on_device(view(scene.tables()));
    const DeviceBytes max = poisoned(scene.rows()), sum = poisoned(scene.rows());
    const DeviceBytes out = poisoned(scene.rows() * shape.head_dim);
    HackPrefillBatch batch = scene.prefill_batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.queries = queries.pointers();
    batch.max = reinterpret_cast<float*>(max.data());
    batch.sum = reinterpret_cast<float*>(sum.data());
    batch.out = reinterpret_cast<float*>(out.data());
    check(attend_hack_prefill_on_gpu(shape.kind, batch,
                                     reinterpret_cast<const PrefillUnit*>(units.data()),
                                     plan.size(), stream()));
    check(stream().synchronize());
    return {values_of<float>(max.read()), values_of<float>(sum.read()),
            values_of<float>(out.read())};
  }

  void expect_right(const Scene& scene, Around around = Around::kPoison) {
    States states = run(scene, around);
    const int d = scene.shape().head_dim;
    for (std::size_t i = 0; i < states.out.size(); ++i) {
      if (states.sum[i / d] != 0) states.out[i] /= states.sum[i / d];
    }
    const bool on_hopper = take(takes_hack_hopper_kernel(scene.shape().kind, d, stream().device()));
    scene.expect_right(states.out, states.max, states.sum,
                       on_hopper ? WeightsIn::kBinary16 : WeightsIn::kEightBits);
  }
};

TEST_F(HackPrefillGpuTest, SmallOneOfEachKernel) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : {64, 128, 256}) {
      expect_right(
          Scene({kind, kind.partition == 0, 6, 2, head_dim, {3, 0}, {{2 * 64 + 50, 20}, {5, 1}}}),
          Around::kNothing);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(HackPrefillGpuTest, EveryKindAndHeadDim) {
  for (const HackKind& kind : kHackKinds) {
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      for (const bool mix : {false, true}) {
        expect_right(Scene({kind, mix, 3, 1, head_dim, {11}, {{10 * 64 + 30, 41}}}));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(HackPrefillGpuTest, EveryGroup) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 64}}) {
    for (int group = 1; group <= 29; ++group) {
      expect_right(Scene({kind, true, group, 1, 128, {5}, {{200, 90}}}, group));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(HackPrefillGpuTest, EveryPlaceInASequence) {
  for (const int position : {0, 1, 63, 64, 65, 127, 128, 640}) {
    for (const int rows : {0, 1, 63, 64, 65, 200}) {
      const int blocks = (position + rows) / kBlockTokens;
      expect_right(Scene({{2, 2, 0}, true, 4, 2, 128, {blocks}, {{position, rows}}}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(HackPrefillGpuTest, BlocksOfTheWindowAreLeftOut) {
  for (const KvWindow window : {KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}, KvWindow{9, 9}}) {
    expect_right(Scene({{2, 2, 0}, true, 2, 1, 128, {5}, {{4 * 64 - 10, 80}}, window}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(HackPrefillGpuTest, EveryRunHasTheSameBits) {
  const Scene scene({{2, 2, 0}, true, 16, 2, 128, {20, 3}, {{19 * 64, 100}, {70, 140}}});
  const States first = run(scene);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(scene) == first);
}

TEST_F(HackPrefillGpuTest, WhatThereIsNoKernelFor) {
  const Scene scene({{2, 2, 0}, true, 2, 1, 64, {1}, {{64, 1}}});
  HackPrefillBatch batch = scene.prefill_batch();
  EXPECT_EQ(attend_hack_prefill_on_gpu({8, 8, 0}, batch, nullptr, 0, stream()).code(),
            Code::kInvalidArgument);
  batch.slabs += 16;
  EXPECT_EQ(attend_hack_prefill_on_gpu({2, 2, 0}, batch, nullptr, 0, stream()).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::hack_fixture
