// Decode attention on codes on a GPU against double precision, with poison around all that it
// writes. Skipped where no GPU is; there hack_decode_device_test.cpp runs the same device code on
// emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_decode_gpu.h"

#include <gtest/gtest.h>

#include "attention/decode_gpu.h"
#include "attention/hack_gpu_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::take;
using gpu_fixture::values_of;
using gpu_fixture::view;
using hack_fixture::Scene;

constexpr int kMultiprocessors = 16;  // that plans are for: more cuts than one device would have

class HackDecodeGpuTest : public hack_fixture::HackGpuTest {
 protected:
  void expect_right(const Scene& scene, Around around = Around::kPoison) {
    const auto& shape = scene.shape();
    const DecodePlan plan =
        plan_decode(scene.tokens(), take(hack_decode_shape(shape.kind, shape.heads, shape.kv_heads,
                                                           shape.head_dim, kMultiprocessors)));
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
    const DeviceBytes max = poisoned(states), sum = poisoned(states);
    const DeviceBytes out = poisoned(states * shape.head_dim);
    const DeviceBytes result = poisoned(rows * shape.head_dim);
    const DeviceBytes total_max = poisoned(rows), total_sum = poisoned(rows);
    HackDecodeBatch batch = scene.batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.queries = queries.pointers();
    batch.max = floats(max);
    batch.sum = floats(sum);
    batch.out = floats(out);
    check(attend_hack_on_gpu(shape.kind, batch, reinterpret_cast<const DecodeUnit*>(units.data()),
                             plan.units.size(), stream()));
    check(merge_on_gpu({.first_state = reinterpret_cast<const std::int32_t*>(first_state.data()),
                        .sequences = static_cast<std::int32_t>(shape.blocks.size()),
                        .heads = shape.heads,
                        .head_dim = shape.head_dim,
                        .max = floats(max),
                        .sum = floats(sum),
                        .out = floats(out),
                        .result_f32 = floats(result),
                        .result_bf16 = nullptr,
                        .total_max = floats(total_max),
                        .total_sum = floats(total_sum),
                        .total_out = nullptr},
                       stream()));
    check(stream().synchronize());
    for (const DeviceBytes* const states_of : {&max, &sum, &out}) states_of->read();
    scene.expect_right(values_of<float>(result.read()), values_of<float>(total_max.read()),
                       values_of<float>(total_sum.read()));
  }
};

TEST_F(HackDecodeGpuTest, SmallOneOfEachKernel) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : kHackDecodeDims) {
      if (head_dim > hack_head_dim_max(kind)) continue;
      expect_right(Scene({kind, kind.partition == 0, 6, 2, head_dim, {1, 0, 9}}),
                   DeviceBytes::Around::kNothing);
      if (HasFatalFailure()) return;
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
}  // namespace kvlane
