// Attention that dequantises on a GPU against double precision, with poison around all that it
// writes. Skipped where no GPU is; there gpu_dequantise_device_test.cpp runs the same device code
// on emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "attention/decode_gpu.h"
#include "attention/hack_gpu_fixture.h"
#include "bench/gpu_dequantise_fixture.h"

namespace kvlane {
namespace {

using dequantise_fixture::kAll;
using dequantise_fixture::kDim;
using dequantise_fixture::plan_of;
using dequantise_fixture::Scene;
using dequantise_fixture::scene;
using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;

class GpuDequantiseGpuTest : public hack_fixture::HackGpuTest {
 protected:
  void expect_right(const Scene& scene, Around around = Around::kPoison) {
    const DecodePlan plan = plan_of(scene);
    const Queries queries = prepare(scene, around);
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const auto poisoned = [&](std::size_t floats) {
      return on_device(Bytes(floats * sizeof(float), DeviceBytes::kPoison));
    };
    const auto floats = [](const DeviceBytes& bytes) {
      return reinterpret_cast<float*>(bytes.data());
    };
    const std::size_t states = plan.first_state.back(), rows = scene.rows();
    const DeviceBytes units = on_device(view(plan.units)), pool = on_device(view(scene.pool()));
    const DeviceBytes first_state = on_device(view(plan.first_state));
    const DeviceBytes tables = on_device(view(scene.tables()));
    for (const GpuDequantiser how : kAll) {
      const DeviceBytes max = poisoned(states), sum = poisoned(states);
      const DeviceBytes out = poisoned(states * kDim), result = poisoned(rows * kDim);
      const DeviceBytes total_max = poisoned(rows), total_sum = poisoned(rows);
      HackDecodeBatch batch = scene.batch();
      batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
      batch.slabs = pool.data() + scene.layer_offset();
      batch.queries = queries.pointers();
      batch.max = floats(max);
      batch.sum = floats(sum);
      batch.out = floats(out);
      check(attend_dequantised_on_gpu(how, batch, reinterpret_cast<const DecodeUnit*>(units.data()),
                                      plan.units.size(), stream()));
      check(merge_on_gpu({.first_state = reinterpret_cast<const std::int32_t*>(first_state.data()),
                          .sequences = static_cast<std::int32_t>(scene.shape().blocks.size()),
                          .heads = batch.heads,
                          .head_dim = kDim,
                          .max = batch.max,
                          .sum = batch.sum,
                          .out = batch.out,
                          .result_f32 = floats(result),
                          .result_bf16 = nullptr,
                          .total_max = floats(total_max),
                          .total_sum = floats(total_sum),
                          .total_out = nullptr},
                         stream()));
      check(stream().synchronize());
      for (const DeviceBytes* const states_of : {&max, &sum, &out}) states_of->read();
      dequantise_fixture::expect_right(scene, how, values_of<float>(result.read()),
                                       values_of<float>(total_max.read()),
                                       values_of<float>(total_sum.read()));
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
