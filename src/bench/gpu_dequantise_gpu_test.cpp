// Attention that dequantises on a GPU against double precision, with poison around all that it
// writes. Skipped where no GPU is; there gpu_dequantise_device_test.cpp runs the same device code
// on emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "attention/hack_gpu_fixture.h"
#include "bench/gpu_dequantise_fixture.h"

namespace kvlane {
namespace {

using dequantise_fixture::kAll;
using dequantise_fixture::plan_of;
using dequantise_fixture::Scene;
using dequantise_fixture::scene;
using gpu_fixture::DeviceBytes;

class GpuDequantiseGpuTest : public hack_fixture::HackGpuTest {
 protected:
  void expect_right(const Scene& scene, Around around = Around::kPoison) {
    const Queries queries = prepare(scene, around);
    for (const GpuDequantiser how : kAll) {
      const Decoded got =
          decode(scene, plan_of(scene), queries, around,
                 [&](const HackDecodeBatch& batch, const DecodeUnit* units, std::size_t count) {
                   return attend_dequantised_on_gpu(how, batch, units, count, stream());
                 });
      dequantise_fixture::expect_right(scene, how, got.result, got.max, got.sum);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(GpuDequantiseGpuTest, SmallOneOfEachKernel) {
  for (const int group : {1, 4, 8}) {
    expect_right(scene(group, 2, {1, 0, 11}), DeviceBytes::Around::kNothing);
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuDequantiseGpuTest, EveryGroup) {
  for (int group = 1; group <= 17; ++group) {
    expect_right(scene(group, 2, {10}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuDequantiseGpuTest, EveryLengthAroundTheEdges) {
  for (const int group : {1, 4, 8}) {
    expect_right(scene(group, 2, {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuDequantiseGpuTest, SharpAndFlatWeights) {
  for (const float size : {0.0F, 0.01F, 30.0F}) {
    expect_right(scene(2, 1, {40}, size));
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuDequantiseGpuTest, WhatThereIsNoKernelFor) {
  const Scene one = scene(2, 1, {1});
  for (const GpuDequantiser how : kAll) {
    HackDecodeBatch batch = one.batch();
    batch.slabs += 16;
    EXPECT_EQ(attend_dequantised_on_gpu(how, batch, nullptr, 0, stream()).code(),
              Code::kInvalidArgument);
    batch = one.batch();
    batch.head_dim = 64;
    EXPECT_EQ(attend_dequantised_on_gpu(how, batch, nullptr, 0, stream()).code(),
              Code::kInvalidArgument);
    batch = one.batch();
    batch.layout.k_metadata += 64;
    EXPECT_EQ(attend_dequantised_on_gpu(how, batch, nullptr, 0, stream()).code(),
              Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvlane
