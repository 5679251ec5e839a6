// Decode attention on a GPU against double precision, with poison around all that it writes.
// Skipped where no GPU is; there decode_device_test.cpp runs the same device code on emulated
// threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/decode_gpu.h"

#include <gtest/gtest.h>

#include "attention/decode_fixture.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::decode_fixture {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;

constexpr int kMultiprocessors = 16;  // that plans are for: more cuts than one device would have

struct GpuOutcome {
  std::vector<float> result, total_max, total_sum, total_out;
  std::vector<std::uint16_t> rounded;
};

class DecodeGpuTest : public gpu_fixture::GpuTest {
 protected:
  GpuOutcome run(const Scene& scene, DeviceBytes::Around around = DeviceBytes::Around::kPoison) {
    const auto& shape = scene.shape();
    const DecodePlan plan = plan_decode(
        shape.tokens,
        take(decode_shape(shape.heads, shape.kv_heads, shape.head_dim, kMultiprocessors)));
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const auto poisoned = [&](std::size_t bytes) {
      return on_device(Bytes(bytes, DeviceBytes::kPoison));
    };
    const std::size_t states = plan.first_state.back(), row = shape.head_dim * sizeof(float);
    const DeviceBytes units = on_device(view(plan.units));
    const DeviceBytes first_state = on_device(view(plan.first_state));
    const DeviceBytes tables = on_device(view(scene.tables()));
    const DeviceBytes pool = on_device(view(scene.pool())), q = on_device(view(scene.q()));
    const DeviceBytes max = poisoned(states * sizeof(float)),
                      sum = poisoned(states * sizeof(float));
    const DeviceBytes out = poisoned(states * row), result = poisoned(scene.rows() * row);
    const DeviceBytes rounded = poisoned(scene.rows() * row / 2);
    const DeviceBytes total_max = poisoned(scene.rows() * sizeof(float));
    const DeviceBytes total_sum = poisoned(scene.rows() * sizeof(float));
    const DeviceBytes total_out = poisoned(scene.rows() * row);
    const auto floats = [](const DeviceBytes& bytes) {
      return reinterpret_cast<float*>(bytes.data());
    };
    DecodeBatch batch = scene.batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.q = q.data();
    batch.max = floats(max);
    batch.sum = floats(sum);
    batch.out = floats(out);
    check(attend_on_gpu(batch, reinterpret_cast<const DecodeUnit*>(units.data()), plan.units.size(),
                        stream()));
    check(merge_on_gpu({.first_state = reinterpret_cast<const std::int32_t*>(first_state.data()),
                        .sequences = static_cast<std::int32_t>(shape.tokens.size()),
                        .heads = shape.heads,
                        .head_dim = shape.head_dim,
                        .max = floats(max),
                        .sum = floats(sum),
                        .out = floats(out),
                        .result_f32 = floats(result),
                        .result_bf16 = rounded.data(),
                        .total_max = floats(total_max),
                        .total_sum = floats(total_sum),
                        .total_out = floats(total_out)},
                       stream()));
    check(stream().synchronize());
    for (const DeviceBytes* const states_of : {&max, &sum, &out}) states_of->read();
    return {values_of<float>(result.read()), values_of<float>(total_max.read()),
            values_of<float>(total_sum.read()), values_of<float>(total_out.read()),
            values_of<std::uint16_t>(rounded.read())};
  }

  void expect_right(const Scene& scene) {
    const GpuOutcome outcome = run(scene);
    scene.expect_right(outcome.result);
    for (std::size_t i = 0; i < outcome.result.size(); ++i) {
      ASSERT_EQ(outcome.rounded[i], to_bf16(outcome.result[i]).bits);
      const float sum = outcome.total_sum[i / scene.shape().head_dim];
      if (sum == 0) {
        ASSERT_EQ(outcome.result[i], 0);
        continue;
      }
      // The reciprocal and the product are each rounded once.
      ASSERT_NEAR(outcome.result[i], outcome.total_out[i] / sum,
                  0x1p-21 * std::abs(outcome.result[i]) + 1e-30);
    }
  }
};

TEST_F(DecodeGpuTest, SmallOneOfEachKernel) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int group : {3, 12}) {
      const Scene scene({2 * group, 2, head_dim, {1, 0, 70, 600}});
      const GpuOutcome outcome = run(scene, DeviceBytes::Around::kNothing);
      scene.expect_right(outcome.result);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DecodeGpuTest, EveryGroupAndHeadDim) {
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 29}) {
    for (const int head_dim : {64, 72, 80, 96, 112, 128, 160, 192, 256}) {
      expect_right(Scene({group, 1, head_dim, {70, 1100}}, group));
      if (HasFatalFailure()) return;
    }
  }
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    expect_right(Scene({6, 2, head_dim, {81, 700}}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(DecodeGpuTest, EveryLengthAroundTheEdges) {
  for (const int head_dim : {64, 128, 256}) {
    expect_right(Scene({4, 2, head_dim, {0,   1,   2,   15, 16,   17,   31,   32,   33,   47,  48,
                                         49,  63,  64,  65, 127,  128,  129,  511,  512,  513, 575,
                                         576, 577, 999, 0,  1000, 1023, 1024, 1025, 2049, 5000}}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(DecodeGpuTest, LongSequences) {
  expect_right(Scene({8, 1, 128, {33000, 7}}));
  expect_right(Scene({4, 2, 64, {20001}}));
}

TEST_F(DecodeGpuTest, BatchesOfManySequences) {
  std::mt19937 random(3);
  // The states of more than 2,048 rows are merged by another kernel.
  for (const int sequences : {1, 2, 37, 512, 600}) {
    std::vector<std::int32_t> tokens(sequences);
    for (std::int32_t& one : tokens) one = static_cast<std::int32_t>(1U << random() % 11) - 1;
    expect_right(Scene({4, 2, 64, tokens}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(DecodeGpuTest, BatchesWithoutAnything) {
  EXPECT_TRUE(run(Scene({4, 2, 64, {}})).result.empty());
  expect_right(Scene({4, 2, 64, {0, 0, 0}}));
}

TEST_F(DecodeGpuTest, EveryRunHasTheSameBits) {
  const Scene scene({16, 2, 128, {3000, 17, 1, 0, 900, 4096}});
  const GpuOutcome first = run(scene);
  for (int i = 0; i < 20; ++i) {
    const GpuOutcome again = run(scene);
    ASSERT_EQ(again.result, first.result);
    ASSERT_EQ(again.total_out, first.total_out);
  }
}

TEST_F(DecodeGpuTest, NoCompanyChangesABit) {
  std::vector<std::int32_t> tokens = {65, 2700, 0, 130, 1, 8000};
  constexpr std::ptrdiff_t kRow = 8 * 64;
  const std::size_t few = tokens.size();
  tokens.resize(300, 3);  // with so many a warp merges the states of a row, else four
  const GpuOutcome all = run(Scene({8, 2, 64, tokens}));
  for (std::size_t i = 0; i < few; ++i) {
    const GpuOutcome own = run(Scene({8, 2, 64, {tokens[i]}}));
    const auto begin = all.result.begin() + static_cast<std::ptrdiff_t>(i) * kRow;
    EXPECT_EQ(own.result, std::vector<float>(begin, begin + kRow)) << "sequence " << i;
  }
}

TEST_F(DecodeGpuTest, MaximaThatMoveFar) {
  for (const int where : {0, 40, 1199}) {
    for (const float size : {30.0F, -30.0F}) {
      Scene scene({4, 1, 64, {1200}});
      scene.scale_key(0, where, 0, size);
      expect_right(scene);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DecodeGpuTest, SaysWhatItCannotDo) {
  const gpu::DeviceBuffer memory = take(gpu::DeviceBuffer::allocate(kDevice, 4096));
  const Scene scene({4, 2, 64, {5}});
  DecodeBatch batch = scene.batch();
  batch.head_dim = 100;
  EXPECT_EQ(attend_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
  batch.head_dim = 264;
  EXPECT_EQ(attend_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
  batch = scene.batch();
  batch.slabs = memory.data() + 8;
  EXPECT_EQ(attend_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
  DecodeMerge merge{.sequences = 1, .heads = 1, .head_dim = 64};
  merge.result_f32 = reinterpret_cast<float*>(memory.data() + 4);
  EXPECT_EQ(merge_on_gpu(merge, stream()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::decode_fixture
