// Device code of decode attention over narrow pages on emulated blocks of threads, against double
// precision and the scalar kernel.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_decode_device.h"

#include <gtest/gtest.h>

#include <memory>

#include "attention/decode_merge_device.h"
#include "attention/narrow_attention_fixture.h"
#include "attention/narrow_page.h"
#include "gpu/emulated_block.h"

namespace kvlane::narrow_fixture {
namespace {

// What a batch leaves: states and results.
struct DecodeOutcome {
  std::vector<float> max, sum, out;  // states
  std::vector<float> result;
  friend bool operator==(const DecodeOutcome&, const DecodeOutcome&) = default;
};

template <int kDim, int kTiles>
void attend(const NarrowDecodeBatch& batch, int machine, std::uint64_t seed) {
  const auto shared = std::make_unique<NarrowDecodeShared<kDim, kTiles>>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
  gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
    attend_narrow_pieces<kDim, kTiles>(thread, batch, machine, *shared);
  });
}

void attend(const NarrowDecodeKernel& kernel, const NarrowDecodeBatch& batch, int machine,
            std::uint64_t seed) {
  switch (kernel.dim * 8 + kernel.tiles) {
    case 64 * 8 + 1: return attend<64, 1>(batch, machine, seed);
    case 64 * 8 + 2: return attend<64, 2>(batch, machine, seed);
    case 128 * 8 + 1: return attend<128, 1>(batch, machine, seed);
    case 128 * 8 + 2: return attend<128, 2>(batch, machine, seed);
    case 256 * 8 + 1: return attend<256, 1>(batch, machine, seed);
    default: FAIL() << "a kernel without a test";
  }
}

constexpr gpu::Floats4 kPoisons{{kPoison, kPoison, kPoison, kPoison}};

DecodeOutcome run(const Scene& scene, const NarrowDecodePlan& plan, std::uint64_t seed = 1) {
  const auto& shape = scene.shape();
  const std::size_t states = scene.first_state().back(), rows = scene.rows();
  DecodeOutcome o;
  // In memory of Floats4, for accesses of 16 bytes.
  std::vector<gpu::Floats4> out(states * shape.head_dim / 4, kPoisons);
  std::vector<gpu::Floats4> result(rows * shape.head_dim / 4, kPoisons);
  const auto floats = [](std::vector<gpu::Floats4>& x) {
    return reinterpret_cast<float*>(x.data());
  };
  o.max.assign(states, kPoison);
  o.sum.assign(states, kPoison);
  NarrowDecodeBatch batch = scene.batch();
  batch.pieces = plan.pieces.data();
  batch.first = plan.first.data();
  batch.max = o.max.data();
  batch.sum = o.sum.data();
  batch.out = floats(out);
  const NarrowDecodeKernel& kernel = *narrow_decode_kernel(shape.group, scene.width_max());
  for (int machine = 0; machine + 1 < static_cast<int>(plan.first.size()); ++machine) {
    attend(kernel, batch, machine, seed++);
  }
  const DecodeMerge merge{.first_state = scene.first_state().data(),
                          .sequences = static_cast<std::int32_t>(shape.blocks.size()),
                          .heads = shape.heads(),
                          .head_dim = shape.head_dim,
                          .max = batch.max,
                          .sum = batch.sum,
                          .out = batch.out,
                          .result_f32 = floats(result)};
  for (std::size_t row = 0; row < rows; ++row) {
    gpu::run_block(gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
      merge_states(thread, merge, static_cast<int>(row));
    });
  }
  o.out.assign(floats(out), floats(out) + out.size() * 4);
  o.result.assign(floats(result), floats(result) + result.size() * 4);
  return o;
}

TEST(NarrowDecodeDevice, EveryWidthOfKAndV) {
  for (int width = 16; width <= 256; width += 16) {
    const int other = width % 64 == 0 ? width : 272 - width;
    const int head_dim = std::max(width, other);
    const Scene scene({3, {{width, other}, {16, width}}, head_dim, {5}}, width);
    scene.expect_right(run(scene, scene.plan(2)).result);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(NarrowDecodeDevice, EveryGroup) {
  for (const int group : {1, 2, 4, 7, 8, 9, 16, 17, 29}) {
    for (const int width : {48, 80, 144}) {
      const Scene scene({group, {{width, 32}}, 160, {2}}, group);
      scene.expect_right(run(scene, scene.plan(1)).result);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Several KV heads of widths of their own, blocks in no order, NaN in all other blocks and layers.
TEST(NarrowDecodeDevice, EveryLengthAndPlan) {
  const Scene scene(
      {2, {{64, 16}, {16, 64}, {48, 32}}, 80, {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 0}});
  for (const int machines : {1, 4, 30}) {
    for (const bool longest_first : {true, false}) {
      scene.expect_right(run(scene, scene.plan(machines, longest_first)).result);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// One token has nearly all weight, or all tokens have about the same.
TEST(NarrowDecodeDevice, SharpAndFlatWeights) {
  for (const float size : {0.0F, 0.01F, 100.0F}) {
    const Scene scene({4, {{48, 64}}, 64, {11}, size}, 3);
    scene.expect_right(run(scene, scene.plan(2)).result);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Runs of pages are cut alike whatever the plan is, so its bits are no matter of the grid or of
// company.
TEST(NarrowDecodeDevice, NeitherGridNorCompanyChangesABit) {
  const std::vector<HeadWidths> widths = {{32, 48}, {64, 16}};
  const std::vector<std::int32_t> blocks = {2, 10, 0, 33, 1};
  const Scene together({4, widths, 64, blocks});
  const DecodeOutcome all = run(together, together.plan(1));
  for (const int machines : {2, 7, 50}) {
    EXPECT_TRUE(run(together, together.plan(machines)) == all) << machines << " machines";
  }
  EXPECT_TRUE(run(together, together.plan(7, false)) == all) << "round-robin";
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Scene alone({4, widths, 64, {blocks[i]}});
    const DecodeOutcome own = run(alone, alone.plan(3));
    const auto begin = all.result.begin() + static_cast<std::ptrdiff_t>(i * 8 * 64);
    EXPECT_TRUE(std::equal(own.result.begin(), own.result.end(), begin)) << "sequence " << i;
  }
}

TEST(NarrowDecodeDevice, NoOrderOfThreadsChangesABit) {
  for (const int group : {7, 29}) {
    const Scene scene({group, {{96, 80}, {16, 128}}, 128, {5, 2}});
    const NarrowDecodePlan plan = scene.plan(2);
    const DecodeOutcome first = run(scene, plan, 1);
    for (const std::uint64_t seed : {100, 200, 300}) {
      EXPECT_TRUE(run(scene, plan, seed) == first) << "seed " << seed;
    }
  }
}

// Each is within the bound of the exact result, and so within twice that of each other.
TEST(NarrowDecodeDevice, IsWhatTheScalarKernelComputes) {
  const HeadWidths widths{48, 80};
  const Scene scene({4, {widths}, 128, {6}});
  const std::vector<float> result = run(scene, scene.plan(1)).result;
  NarrowQueries q{};
  StateTile tile;
  tile.reset(4, widths.v);
  for (int head = 0; head < 4; ++head) {
    for (int i = 0; i < widths.k; ++i) {
      q[head][i] = static_cast<float>(scene.scale()) * to_float(bf16{scene.query(0, head)[i]});
    }
  }
  for (int block = 0; block < 6; ++block) {
    attend_narrow_scalar({q, widths, scene.page(0, block, 0), {}, &tile});
  }
  for (int head = 0; head < 4; ++head) {
    const Row row = scene.exact(0, 0, head);
    for (int i = 0; i < 128; ++i) {
      const float expected = i < widths.v ? tile.out[head * widths.v + i] / tile.sum[head] : 0;
      ASSERT_NEAR(result[head * 128 + i], expected, 2 * row.allowed[i])
          << "head " << head << ", channel " << i;
    }
  }
}

TEST(NarrowDecodeShape, OneListOfKernels) {
  for (int width = 16; width <= 256; width += 16) {
    for (int group = 1; group <= 64; ++group) {
      const NarrowDecodeKernel* kernel = narrow_decode_kernel(group, width);
      ASSERT_NE(kernel, nullptr);
      EXPECT_EQ(kernel->dim, width <= 64 ? 64 : width <= 128 ? 128 : 256);
      EXPECT_EQ(kernel->tiles, group > 8 && width <= 128 ? 2 : 1);
    }
  }
  const std::vector<HeadWidths> widths = {{64, 16}, {16, 112}};
  EXPECT_EQ(narrow_decode_shape(8, widths, 128, 132)->machines, 132 * 4);
  EXPECT_EQ(narrow_decode_shape(40, widths, 128, 132)->machines, 132 * 3);
  const auto refused = [](int heads, const std::vector<HeadWidths>& of, int d, int processors) {
    return narrow_decode_shape(heads, of, d, processors).status().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused(7, widths, 128, 132));
  EXPECT_TRUE(refused(8, {}, 128, 132));
  EXPECT_TRUE(refused(8, widths, 128, 0));
  EXPECT_TRUE(refused(8, widths, 96, 132)) << "wider than head_dim";
  EXPECT_TRUE(refused(8, widths, 120, 132));
  EXPECT_TRUE(refused(8, widths, 272, 132));
  EXPECT_TRUE(refused(8, {{64, 0}, {16, 16}}, 128, 132));
  EXPECT_TRUE(refused(8, {{64, 16}, {24, 16}}, 128, 132));
}

}  // namespace
}  // namespace kvlane::narrow_fixture
