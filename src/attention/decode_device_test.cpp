// Device code of decode attention on emulated blocks of threads, against double precision.
// SPDX-License-Identifier: Apache-2.0
#include "attention/decode_device.h"

#include <gtest/gtest.h>

#include <memory>

#include "attention/decode_fixture.h"
#include "attention/decode_merge_device.h"
#include "attention/partial_state.h"
#include "gpu/emulated_block.h"

namespace kvlane::decode_fixture {
namespace {

// What a batch leaves: states and results.
struct Outcome {
  std::vector<float> max, sum, out;  // states
  std::vector<float> result, total_max, total_sum, total_out;
  std::vector<std::uint16_t> rounded;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

template <int kDim, int kTiles>
void attend(const DecodeBatch& batch, const DecodeUnit& unit, std::uint64_t seed) {
  const auto shared = std::make_unique<DecodeShared<kDim, kTiles>>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
  gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
    attend_unit<kDim, kTiles>(thread, batch, unit, *shared);
  });
}

void attend(const DecodeKernelShape& kernel, const DecodeBatch& batch, const DecodeUnit& unit,
            std::uint64_t seed) {
  switch (kernel.dim * 8 + kernel.tiles) {
    case 64 * 8 + 1: return attend<64, 1>(batch, unit, seed);
    case 64 * 8 + 2: return attend<64, 2>(batch, unit, seed);
    case 128 * 8 + 1: return attend<128, 1>(batch, unit, seed);
    case 128 * 8 + 2: return attend<128, 2>(batch, unit, seed);
    case 256 * 8 + 1: return attend<256, 1>(batch, unit, seed);
    default: FAIL() << "a kernel without a test";
  }
}

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr gpu::Floats4 kPoisons{{kPoison, kPoison, kPoison, kPoison}};

Outcome run(const Scene& scene, const DecodePlan& plan, std::uint64_t seed = 1) {
  const auto& shape = scene.shape();
  const DecodeKernelShape& kernel = *decode_kernel(shape.heads / shape.kv_heads, shape.head_dim);
  const std::size_t states = plan.first_state.back(), rows = scene.rows();
  Outcome o;
  // In memory of Floats4, for accesses of 16 bytes.
  std::vector<gpu::Floats4> out(states * shape.head_dim / 4, kPoisons);
  std::vector<gpu::Floats4> result(rows * shape.head_dim / 4, kPoisons), total_out(result);
  std::vector<gpu::Words4> rounded(rows * shape.head_dim / 8, {{~0U, ~0U, ~0U, ~0U}});
  const auto floats = [](std::vector<gpu::Floats4>& x) {
    return reinterpret_cast<float*>(x.data());
  };
  o.max.assign(states, kPoison);
  o.sum.assign(states, kPoison);
  o.total_max.assign(rows, kPoison);
  o.total_sum.assign(rows, kPoison);
  DecodeBatch batch = scene.batch();
  batch.max = o.max.data();
  batch.sum = o.sum.data();
  batch.out = floats(out);
  for (const DecodeUnit& unit : plan.units) attend(kernel, batch, unit, seed++);
  const DecodeMerge merge{.first_state = plan.first_state.data(),
                          .sequences = static_cast<std::int32_t>(shape.tokens.size()),
                          .heads = shape.heads,
                          .head_dim = shape.head_dim,
                          .max = batch.max,
                          .sum = batch.sum,
                          .out = batch.out,
                          .result_f32 = floats(result),
                          .result_bf16 = reinterpret_cast<std::byte*>(rounded.data()),
                          .total_max = o.total_max.data(),
                          .total_sum = o.total_sum.data(),
                          .total_out = floats(total_out)};
  DecodeMergeShared shared;
  std::vector<gpu::Floats4> together(rows * shape.head_dim / 4, kPoisons);
  DecodeMerge merge_together = merge;
  merge_together.result_f32 = floats(together);
  for (std::size_t row = 0; row < rows; ++row) {
    gpu::run_block(decode_merge::kRuns * gpu::kWarpThreads, seed++,
                   [&](gpu::EmulatedThread& thread) {
                     merge_states_together(thread, merge_together, static_cast<int>(row), shared);
                   });
    gpu::run_block(gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
      merge_states(thread, merge, static_cast<int>(row));
    });
  }
  EXPECT_EQ(std::memcmp(together.data(), result.data(), result.size() * sizeof(gpu::Floats4)), 0);
  o.out.assign(floats(out), floats(out) + out.size() * 4);
  o.result.assign(floats(result), floats(result) + result.size() * 4);
  o.total_out.assign(floats(total_out), floats(total_out) + total_out.size() * 4);
  const auto* halves = reinterpret_cast<const std::uint16_t*>(rounded.data());
  o.rounded.assign(halves, halves + rounded.size() * 8);
  return o;
}

// Units of `blocks` blocks each.
DecodePlan cut(const Scene& scene, int blocks) {
  const auto& shape = scene.shape();
  const DecodeShape whole = *decode_shape(shape.heads, shape.kv_heads, shape.head_dim, 1);
  DecodePlan plan;
  int states = 0;
  const int group = shape.heads / shape.kv_heads;
  for (int sequence = 0; sequence < static_cast<int>(shape.tokens.size()); ++sequence) {
    plan.first_state.push_back(states);
    for (int first = 0; first < shape.tokens[sequence]; first += blocks * kBlockTokens) {
      const int end = std::min(shape.tokens[sequence], first + blocks * kBlockTokens);
      for (int head = 0; head < shape.heads; ++head) {
        const int query = head % group;
        if (query % whole.queries != 0) continue;
        plan.units.push_back({sequence, head / group, head, std::min(whole.queries, group - query),
                              first, end, states + head});
      }
      states += shape.heads;
    }
  }
  plan.first_state.push_back(states);
  return plan;
}

TEST(DecodeDevice, EveryGroupAndHeadDim) {
  for (const int group : {1, 2, 4, 7, 8, 16, 29}) {
    for (const int head_dim : {64, 80, 96, 128, 256}) {
      const Scene scene({group, 1, head_dim, {70}}, group);
      const Outcome outcome = run(scene, cut(scene, 8));
      scene.expect_right(outcome.result);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  for (const int head_dim : {8, 16, 24, 72, 120, 136, 248}) {
    const Scene scene({3, 1, head_dim, {81}});
    scene.expect_right(run(scene, cut(scene, 8)).result);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Several KV heads, blocks in no order, NaN in all rows behind the last token and in other layers.
TEST(DecodeDevice, EveryLengthAndCut) {
  for (const int head_dim : {64, 128}) {
    const Scene scene({4, 2, head_dim, {0, 1, 15, 16, 17, 63, 64, 65, 128, 129, 1000, 0}});
    for (const int blocks : {1, 3, 16}) {
      scene.expect_right(run(scene, cut(scene, blocks)).result);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(DecodeDevice, AsPlanned) {
  for (const int multiprocessors : {1, 4}) {
    const Scene scene({16, 2, 80, {700, 3, 0, 1100}});
    const auto& shape = scene.shape();
    const DecodeShape cuts =
        *decode_shape(shape.heads, shape.kv_heads, shape.head_dim, multiprocessors);
    const DecodePlan plan = plan_decode(shape.tokens, cuts);
    EXPECT_EQ(plan.first_state.back(), 16 * (multiprocessors == 1 ? 3 : 2 + 1 + 3));
    scene.expect_right(run(scene, plan).result);
  }
}

TEST(DecodeDevice, SequencesWithoutTokensAreZero) {
  const Scene scene({2, 1, 64, {0, 5, 0}});
  const Outcome outcome = run(scene, cut(scene, 1));
  for (const int row : {0, 1, 4, 5}) {
    EXPECT_EQ(outcome.total_max[row], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(outcome.total_sum[row], 0);
    for (int i = row * 64; i < row * 64 + 64; ++i) {
      ASSERT_EQ(outcome.result[i], 0);
      ASSERT_EQ(outcome.rounded[i], 0);
      ASSERT_EQ(outcome.total_out[i], 0);
    }
  }
}

TEST(DecodeDevice, UnitsWithoutTokensLeaveStatesOfNoTokens) {
  const Scene scene({2, 1, 64, {100}});
  DecodePlan plan = cut(scene, 1);
  const Outcome without = run(scene, plan);
  // One before and one behind.
  for (DecodeUnit& unit : plan.units) unit.first_state += 2;
  plan.units.push_back({0, 0, 0, 2, 0, 0, 0});
  plan.units.push_back({0, 0, 0, 2, 128, 100, 6});
  plan.first_state.back() += 4;
  const Outcome with = run(scene, plan);
  for (const int state : {0, 1, 6, 7}) {
    EXPECT_EQ(with.max[state], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(with.sum[state], 0);
    for (int i = state * 64; i < state * 64 + 64; ++i) ASSERT_EQ(with.out[i], 0);
  }
  EXPECT_EQ(with.result, without.result);
}

// States are those of attention/partial_state.h: its merge gives the same total.
TEST(DecodeDevice, StatesMergeAsThoseOfTheCpu) {
  constexpr int kHeads = 2, kDim = 64;
  const Scene scene({kHeads, 1, kDim, {300}});
  const DecodePlan plan = cut(scene, 1);
  const Outcome outcome = run(scene, plan);
  StateTile total, state;
  total.reset(kHeads, kDim);
  for (int first = 0; first < plan.first_state.back(); first += kHeads) {
    state.reset(kHeads, kDim);
    std::copy_n(outcome.max.data() + first, kHeads, state.max);
    std::copy_n(outcome.sum.data() + first, kHeads, state.sum);
    std::copy_n(outcome.out.data() + first * kDim, kHeads * kDim, state.out);
    merge(state, total);
  }
  for (int head = 0; head < kHeads; ++head) {
    EXPECT_EQ(total.max[head], outcome.total_max[head]);
    EXPECT_NEAR(total.sum[head], outcome.total_sum[head], 1e-5 * total.sum[head]);
    for (int i = head * kDim; i < (head + 1) * kDim; ++i) {
      EXPECT_NEAR(total.out[i], outcome.total_out[i], 1e-5 * total.sum[head]);
      EXPECT_EQ(outcome.rounded[i], to_bf16(outcome.result[i]).bits);
      EXPECT_NEAR(outcome.result[i], outcome.total_out[i] / outcome.total_sum[head], 1e-6);
    }
  }
}

TEST(DecodeDevice, NoOrderOfThreadsChangesABit) {
  for (const int heads : {7, 29}) {
    const Scene scene({heads, 1, 96, {200, 37}});
    const DecodePlan plan = cut(scene, 2);
    const Outcome first = run(scene, plan, 1);
    for (const std::uint64_t seed : {100, 200, 300}) {
      const Outcome other = run(scene, plan, seed);
      EXPECT_TRUE(other == first) << "seed " << seed;
    }
  }
}

TEST(DecodeDevice, NoCompanyChangesABit) {
  const std::vector<std::int32_t> tokens = {65, 700, 0, 130, 1};
  const Scene together({8, 2, 64, tokens});
  const DecodeShape cuts = *decode_shape(8, 2, 64, 2);
  const Outcome all = run(together, plan_decode(tokens, cuts));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Scene alone({8, 2, 64, {tokens[i]}});
    const Outcome own = run(alone, plan_decode({&tokens[i], 1}, cuts));
    const auto begin = all.result.begin() + static_cast<std::ptrdiff_t>(i * 8 * 64);
    EXPECT_TRUE(std::equal(own.result.begin(), own.result.end(), begin)) << "sequence " << i;
  }
}

// One token has nearly all weight, first or last, far above and far below the others.
TEST(DecodeDevice, MaximaThatMoveFar) {
  for (const int where : {0, 40, 199}) {
    for (const float size : {30.0F, -30.0F}) {
      Scene scene({4, 1, 64, {200}});
      scene.scale_key(0, where, 0, size);
      scene.expect_right(run(scene, cut(scene, 2)).result);
    }
  }
}

TEST(DecodeShape, OneListOfKernels) {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (int group = 1; group <= 64; ++group) {
      const DecodeKernelShape* kernel = decode_kernel(group, head_dim);
      ASSERT_NE(kernel, nullptr);
      EXPECT_GE(kernel->dim, head_dim);
      EXPECT_EQ(kernel->dim, head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256);
      EXPECT_EQ(kernel->tiles, group > 8 && head_dim <= 128 ? 2 : 1);
    }
  }
  for (const int head_dim : {0, -8, 4, 12, 100, 264}) {
    EXPECT_EQ(decode_kernel(4, head_dim), nullptr);
    EXPECT_EQ(decode_shape(8, 2, head_dim, 132).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(decode_shape(8, 3, 64, 132).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(decode_shape(8, 2, 64, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(decode_shape(8, 2, 128, 132)->units, 396);
}

}  // namespace
}  // namespace kvlane::decode_fixture
