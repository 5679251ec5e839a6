// Decode attention over narrow pages on a GPU against double precision, with poison around all that
// it writes. Skipped where no GPU is; there narrow_decode_device_test.cpp runs the same device code
// on emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_decode_gpu.h"

#include <gtest/gtest.h>

#include "attention/decode_gpu.h"
#include "attention/narrow_attention_fixture.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::narrow_fixture {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;

constexpr int kMultiprocessors = 16;  // that plans are for, if nothing else is said

class NarrowDecodeGpuTest : public gpu_fixture::GpuTest {
 protected:
  using Around = DeviceBytes::Around;

  std::vector<float> run(const Scene& scene, int multiprocessors = kMultiprocessors,
                         bool longest_first = true, Around around = Around::kPoison) {
    const auto& shape = scene.shape();
    const int machines =
        take(narrow_decode_shape(shape.heads(), shape.widths, shape.head_dim, multiprocessors))
            .machines;
    const NarrowDecodePlan plan = scene.plan(machines, longest_first);
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const auto poisoned = [&](std::size_t floats) {
      return on_device(Bytes(floats * sizeof(float), DeviceBytes::kPoison));
    };
    const auto floats = [](const DeviceBytes& bytes) {
      return reinterpret_cast<float*>(bytes.data());
    };
    const std::size_t states = scene.first_state().back(), rows = scene.rows();
    const DeviceBytes pieces = on_device(view(plan.pieces)), first = on_device(view(plan.first));
    const DeviceBytes first_state = on_device(view(scene.first_state()));
    const DeviceBytes tables = on_device(view(scene.tables()));
    const DeviceBytes pool = on_device(view(scene.pool())), q = on_device(view(scene.q()));
    const DeviceBytes max = poisoned(states), sum = poisoned(states);
    const DeviceBytes out = poisoned(states * shape.head_dim);
    const DeviceBytes result = poisoned(rows * shape.head_dim);
    NarrowDecodeBatch batch = scene.batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.q = q.data();
    batch.pieces = reinterpret_cast<const NarrowPiece*>(pieces.data());
    batch.first = reinterpret_cast<const std::int32_t*>(first.data());
    batch.max = floats(max);
    batch.sum = floats(sum);
    batch.out = floats(out);
    check(attend_narrow_on_gpu(batch, scene.width_max(), machines, stream()));
    check(merge_on_gpu({.first_state = reinterpret_cast<const std::int32_t*>(first_state.data()),
                        .sequences = static_cast<std::int32_t>(shape.blocks.size()),
                        .heads = shape.heads(),
                        .head_dim = shape.head_dim,
                        .max = floats(max),
                        .sum = floats(sum),
                        .out = floats(out),
                        .result_f32 = floats(result),
                        .result_bf16 = nullptr,
                        .total_max = nullptr,
                        .total_sum = nullptr,
                        .total_out = nullptr},
                       stream()));
    check(stream().synchronize());
    for (const DeviceBytes* const states_of : {&max, &sum, &out}) states_of->read();
    return values_of<float>(result.read());
  }
  void expect_right(const Scene& scene) { scene.expect_right(run(scene)); }
};

TEST_F(NarrowDecodeGpuTest, SmallOneOfEachKernel) {
  for (const int width : {64, 112, 240}) {
    for (const int group : {3, 12}) {
      const Scene scene({group, {{width, 16}, {48, width}}, 256, {1, 0, 9}});
      scene.expect_right(run(scene, 2, true, Around::kNothing));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(NarrowDecodeGpuTest, EveryPairOfWidths) {
  for (const int head_dim : {64, 128}) {
    for (int k = 16; k <= head_dim; k += 16) {
      for (int v = 16; v <= head_dim; v += 16) {
        expect_right(Scene({5, {{k, v}, {v, k}}, head_dim, {3, 11}}));
        if (HasFatalFailure()) return;
      }
    }
  }
  for (int width = 16; width <= 256; width += 16) {
    expect_right(Scene({5, {{width, 272 - width}}, 256, {3, 11}}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(NarrowDecodeGpuTest, EveryGroup) {
  for (int group = 1; group <= 29; ++group) {
    for (const int width : {64, 128, 256}) {
      expect_right(Scene({group, {{width, 48}, {16, 80}}, 256, {10}}, group));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(NarrowDecodeGpuTest, EveryLengthAroundTheEdges) {
  const Scene scene({4, {{64, 48}, {16, 128}}, 128, {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 100}});
  for (const int multiprocessors : {1, 132, 1000}) {
    scene.expect_right(run(scene, multiprocessors));
    if (HasFatalFailure()) return;
  }
}

TEST_F(NarrowDecodeGpuTest, LongSequences) {
  expect_right(Scene({8, {{64, 64}}, 128, {512, 1}}));
  expect_right(Scene({4, {{32, 80}, {128, 16}}, 128, {300}}));
}

TEST_F(NarrowDecodeGpuTest, NeitherGridNorRunChangesABit) {
  const Scene scene({4, {{64, 48}, {16, 128}}, 128, {60, 3, 0, 200}});
  const std::vector<float> first = run(scene);
  for (const int multiprocessors : {1, 7, 132}) {
    for (const bool longest_first : {true, false}) {
      ASSERT_EQ(run(scene, multiprocessors, longest_first), first);
    }
  }
}

TEST_F(NarrowDecodeGpuTest, NothingToDo) {
  EXPECT_TRUE(run(Scene({4, {{64, 48}}, 128, {}})).empty());
  expect_right(Scene({4, {{64, 48}}, 128, {0, 0}}));
}

TEST_F(NarrowDecodeGpuTest, SaysWhatItCannotDo) {
  const Scene scene({2, {{64, 64}}, 64, {1}});
  const auto refused = [&](const NarrowDecodeBatch& batch, int width_max) {
    return attend_narrow_on_gpu(batch, width_max, 0, stream()).code() == Code::kInvalidArgument;
  };
  NarrowDecodeBatch batch = scene.batch();
  EXPECT_TRUE(refused(batch, 0));
  EXPECT_TRUE(refused(batch, 24));
  EXPECT_TRUE(refused(batch, 80)) << "wider than head_dim";
  batch.slabs += 8;
  EXPECT_TRUE(refused(batch, 64));
  batch = scene.batch();
  batch.block_bytes += 8;
  EXPECT_TRUE(refused(batch, 64));
  batch = scene.batch();
  batch.kv_heads = 3;
  EXPECT_TRUE(refused(batch, 64));
}

}  // namespace
}  // namespace kvlane::narrow_fixture
