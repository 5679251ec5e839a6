// Decode attention on codes on a GPU against double precision, with poison around all that it
// writes. Skipped where no GPU is; there hack_decode_device_test.cpp runs the same device code on
// emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_decode_gpu.h"

#include <gtest/gtest.h>

#include <utility>

#include "attention/hack_gpu_fixture.h"
#include "base/test_results.h"

namespace kvlane::hack_fixture {
namespace {

using gpu_fixture::DeviceBytes;

constexpr int kMultiprocessors = 16;  // that plans are for: more cuts than one device would have

class HackDecodeGpuTest : public HackGpuTest {
 protected:
  void expect_right(const Scene& scene, Around around = Around::kPoison,
                    int multiprocessors = kMultiprocessors) {
    const auto& shape = scene.shape();
    const DecodeShape cuts = take(hack_decode_shape(shape.kind, shape.heads, shape.kv_heads,
                                                    shape.head_dim, multiprocessors));
    const Decoded got =
        decode(scene, plan_decode(scene.tokens(), cuts), prepare(scene, around), around,
               [&](const HackDecodeBatch& batch, const DecodeUnit* units, std::size_t count) {
                 return attend_hack_on_gpu(shape.kind, batch, units, count, stream());
               });
    scene.expect_right(got.result, got.max, got.sum);
  }
};

TEST_F(HackDecodeGpuTest, SmallOneOfEachKernel) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : kHackDecodeDims) {
      if (head_dim > hack_head_dim_max(kind)) continue;
      // Of heads as wide as the kernel, with one head a lane and with two; and of narrower ones.
      for (const auto& [heads, dim] :
           {std::pair(6, head_dim), {12, head_dim}, {6, head_dim - 16}}) {
        expect_right(Scene({kind, kind.partition == 0, heads, 2, dim, {1, 0, 9}}),
                     DeviceBytes::Around::kNothing);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(HackDecodeGpuTest, EveryKindAndHeadDim) {
  for (const HackKind& kind : kHackKinds) {
    for (int head_dim = 16; head_dim <= hack_head_dim_max(kind); head_dim += 16) {
      for (const bool mix : {false, true}) {
        expect_right(Scene({kind, mix, 5, 1, head_dim, {3, 11}}));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(HackDecodeGpuTest, EveryGroup) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 64}}) {
    for (int group = 1; group <= 17; ++group) {
      expect_right(Scene({kind, true, 2 * group, 2, 128, {10}}, group));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(HackDecodeGpuTest, EveryLengthAroundTheEdges) {
  expect_right(
      Scene({{2, 2, 0}, true, 4, 2, 128, {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40, 100}}));
}

TEST_F(HackDecodeGpuTest, LongSequences) {
  expect_right(Scene({{2, 2, 0}, true, 8, 1, 128, {512, 1}}));
  expect_right(Scene({{2, 2, 64}, false, 4, 2, 64, {300}}));
}

// Of 64 pages, and somewhat fewer: the means of more than eight are multiplied at once.
TEST_F(HackDecodeGpuTest, UnitsAsLongAsTheyMayBe) {
  for (const int heads : {2, 8}) {
    expect_right(Scene({{2, 2, 0}, true, heads, 1, 128, {64, 35, 130}}), Around::kPoison, 1);
    if (HasFatalFailure()) return;
  }
}

TEST_F(HackDecodeGpuTest, WhatThereIsNoKernelFor) {
  const Scene scene({{2, 2, 0}, true, 2, 1, 64, {1}});
  HackDecodeBatch batch = scene.batch();
  EXPECT_EQ(attend_hack_on_gpu({8, 8, 0}, batch, nullptr, 0, stream()).code(),
            Code::kInvalidArgument);
  batch.slabs += 16;
  EXPECT_EQ(attend_hack_on_gpu({2, 2, 0}, batch, nullptr, 0, stream()).code(),
            Code::kInvalidArgument);
  HackPrepare prepare = scene.prepare();
  prepare.head_dim = 24;
  EXPECT_EQ(prepare_hack_on_gpu(prepare, stream()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::hack_fixture
