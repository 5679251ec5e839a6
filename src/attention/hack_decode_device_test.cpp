// Device code of decode attention on codes on emulated blocks of threads: queries against the
// scalar code bit for bit, results against double precision.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_decode_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "attention/decode_merge_device.h"
#include "attention/hack_prepared_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane::hack_fixture {
namespace {

void attend(const HackKind& kind, const HackDecodeBatch& batch, const DecodeUnit& unit,
            std::uint64_t seed) {
  bool there = false;
  with_hack_decode_kernel(kind, batch.head_dim, batch.heads / batch.kv_heads, [&](auto known) {
    constexpr int kDim = decltype(known)::kDim;
    constexpr int kKey = decltype(known)::kKeyBits;
    constexpr int kValue = decltype(known)::kValueBits;
    constexpr int kPart = decltype(known)::kPartition;
    constexpr bool kWhole = decltype(known)::kWhole;
    constexpr int kHeads = decltype(known)::kHeads;
    there = true;
    const auto shared = std::make_unique<HackDecodeMemory<kDim, kKey, kValue, kPart>>();
    std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
    gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
      attend_coded_unit<kDim, kKey, kValue, kPart, kWhole, kHeads>(thread, batch, unit, *shared);
    });
  });
  ASSERT_TRUE(there) << "a kind without a kernel";
}

// What a batch leaves: states and results.
struct DecodeOutcome {
  std::vector<float> max, sum, out;  // states
  std::vector<float> result, total_max, total_sum;
  friend bool operator==(const DecodeOutcome&, const DecodeOutcome&) = default;
};

DecodeOutcome run(const Scene& scene, const DecodePlan& plan, std::uint64_t seed = 1) {
  const auto& shape = scene.shape();
  const std::size_t states = plan.first_state.back();
  Prepared prepared(scene, seed);
  DecodeOutcome o;
  Lines out = poisoned(states * shape.head_dim * sizeof(float));
  Lines result = poisoned(scene.rows() * shape.head_dim * sizeof(float));
  const auto floats = [](Lines& x) { return reinterpret_cast<float*>(x.data()); };
  o.max.assign(states, kPoisoned);
  o.sum.assign(states, kPoisoned);
  o.total_max.assign(scene.rows(), kPoisoned);
  o.total_sum.assign(scene.rows(), kPoisoned);
  HackDecodeBatch batch = scene.batch();
  batch.queries = prepared.pointers();
  batch.max = o.max.data();
  batch.sum = o.sum.data();
  batch.out = floats(out);
  for (const DecodeUnit& unit : plan.units) attend(shape.kind, batch, unit, seed++);
  const DecodeMerge merge{.first_state = plan.first_state.data(),
                          .sequences = static_cast<std::int32_t>(shape.blocks.size()),
                          .heads = shape.heads,
                          .head_dim = shape.head_dim,
                          .max = batch.max,
                          .sum = batch.sum,
                          .out = batch.out,
                          .result_f32 = floats(result),
                          .result_bf16 = nullptr,
                          .total_max = o.total_max.data(),
                          .total_sum = o.total_sum.data(),
                          .total_out = nullptr};
  for (std::size_t row = 0; row < scene.rows(); ++row) {
    gpu::run_block(gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
      merge_states(thread, merge, static_cast<int>(row));
    });
  }
  o.out.assign(floats(out), floats(out) + states * shape.head_dim);
  o.result.assign(floats(result), floats(result) + scene.rows() * shape.head_dim);
  return o;
}

// Units of `blocks` blocks each.
DecodePlan cut(const Scene& scene, int blocks) {
  const auto& shape = scene.shape();
  const int group = shape.heads / shape.kv_heads;
  DecodePlan plan;
  int states = 0;
  for (int sequence = 0; sequence < static_cast<int>(shape.blocks.size()); ++sequence) {
    plan.first_state.push_back(states);
    for (int first = 0; first < shape.blocks[sequence]; first += blocks) {
      const int end = std::min(shape.blocks[sequence], first + blocks);
      for (int head = 0; head < shape.heads; ++head) {
        const int query = head % group;
        if (query % kDecodeColumns != 0) continue;
        plan.units.push_back({sequence, head / group, head, std::min(kDecodeColumns, group - query),
                              first * kBlockTokens, end * kBlockTokens, states + head});
      }
      states += shape.heads;
    }
  }
  plan.first_state.push_back(states);
  return plan;
}

void expect_right(const Scene& scene, const DecodeOutcome& outcome) {
  scene.expect_right(outcome.result, outcome.total_max, outcome.total_sum);
}

TEST(HackDecodeDevice, QueriesAreThoseOfTheScalarCode) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : {16, 64, 80, 96, 128, 240, 256}) {
      for (const bool mix : {false, true}) {
        const Scene scene({kind, mix, 3, 1, head_dim, {0}}, 2);
        Prepared prepared(scene);
        for (std::size_t row = 0; row < scene.rows(); ++row) {
          const auto expected = scene.prepared(row);
          ASSERT_EQ(prepared.scales[row], expected->scale[0]);
          const auto* const codes = reinterpret_cast<const std::int8_t*>(prepared.codes.data());
          const auto* const rests = reinterpret_cast<const std::uint16_t*>(prepared.rests.data());
          const double a = expected->scale[0];
          double sums[kHackTerms] = {}, magnitudes[kHackTerms] = {}, left[kHackTerms] = {};
          for (int i = 0; i < head_dim; ++i) {
            const std::size_t at = row * head_dim + i;
            ASSERT_EQ(codes[at], expected->codes[0][i]) << "head_dim " << head_dim;
            const double y = expected->values[0][i] / a;
            ASSERT_NEAR(codes[at] + to_float(fp16{rests[at]}), y, 0x1p-13 + 0x1p-22 * std::abs(y));
            const int partition = i / scene.hack().key_partition();
            sums[partition] += kind.partition == 0 ? 0 : y;
            magnitudes[partition] += kind.partition == 0 ? 0 : std::abs(y);
            left[partition] -= codes[at];
          }
          // Sums of 2^5 and then of 8 at most, each rounded.
          for (int i = 0; i < kHackTerms; ++i) {
            const HackTerm& term = prepared.terms[row * kHackTerms + i];
            const double h = hack::middle_code(scene.hack().k);
            ASSERT_NEAR(term.sum, sums[i], 0x1p-19 * magnitudes[i]);
            ASSERT_NEAR(term.centre, h * (sums[i] + left[i]), 0x1p-18 * h * magnitudes[i]);
          }
        }
      }
    }
  }
}

TEST(HackDecodeDevice, EveryKindAndHeadDim) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : {16, 32, 64, 80, 96, 112, 128, 192, 256}) {
      if (head_dim > hack_head_dim_max(kind)) continue;
      const Scene scene({kind, kind.partition == 0, 3, 1, head_dim, {5}}, head_dim);
      expect_right(scene, run(scene, cut(scene, 8)));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// As wide as the kernels are, with one query head a lane and with two.
TEST(HackDecodeDevice, EveryKernel) {
  for (const HackKind& kind : kHackKinds) {
    for (const int head_dim : kHackDecodeDims) {
      if (head_dim > hack_head_dim_max(kind)) continue;
      for (const int group : {4, 7}) {
        const Scene scene({kind, kind.partition == 0, group, 1, head_dim, {6}}, group);
        expect_right(scene, run(scene, cut(scene, 8)));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Of 64 pages, and somewhat fewer: the means of more than eight are multiplied at once.
TEST(HackDecodeDevice, UnitsAsLongAsTheyMayBe) {
  for (const int group : {1, 5}) {
    const Scene scene({{2, 2, 0}, true, group, 1, 64, {64, 35}}, group);
    expect_right(scene, run(scene, cut(scene, kDecodeWarps * kHackWarpPages)));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(HackDecodeDevice, EveryGroup) {
  for (const int group : {1, 2, 5, 8, 9, 16}) {
    const Scene scene({{2, 2, 0}, true, group, 1, 64, {2}}, group);
    expect_right(scene, run(scene, cut(scene, 8)));
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Several KV heads, blocks in no order, bytes of FF in all other blocks and layers.
TEST(HackDecodeDevice, EveryLengthAndCut) {
  const Scene scene({{2, 2, 0}, true, 4, 2, 80, {0, 1, 2, 3, 4, 5, 9, 0}});
  for (const int blocks : {1, 3, 16}) {
    expect_right(scene, run(scene, cut(scene, blocks)));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(HackDecodeDevice, AsPlanned) {
  const Scene scene({{2, 2, 64}, false, 4, 2, 64, {20, 1, 0, 9}});
  const DecodeShape cuts = *hack_decode_shape(scene.shape().kind, 4, 2, 64, 2);
  expect_right(scene, run(scene, plan_decode(scene.tokens(), cuts)));
}

// One token has nearly all weight, or all tokens have about the same.
TEST(HackDecodeDevice, SharpAndFlatWeights) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 64}}) {
    for (const float size : {0.0F, 0.01F, 30.0F}) {
      const Scene scene({kind, false, 2, 1, 64, {6}}, 3, size);
      expect_right(scene, run(scene, cut(scene, 4)));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(HackDecodeDevice, UnitsWithoutTokensLeaveStatesOfNoTokens) {
  const Scene scene({{2, 2, 0}, true, 2, 1, 64, {2}});
  DecodePlan plan = cut(scene, 1);
  plan.units.push_back({0, 0, 0, 2, 0, 0, plan.first_state.back()});
  plan.first_state.back() += 2;
  const DecodeOutcome outcome = run(scene, plan);
  for (const std::size_t state : {outcome.max.size() - 2, outcome.max.size() - 1}) {
    EXPECT_EQ(outcome.max[state], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(outcome.sum[state], 0);
    for (std::size_t i = state * 64; i < state * 64 + 64; ++i) ASSERT_EQ(outcome.out[i], 0);
  }
  expect_right(scene, outcome);
}

TEST(HackDecodeDevice, NoOrderOfThreadsChangesABit) {
  for (const HackKind& kind : {HackKind{2, 2, 0}, HackKind{2, 2, 32}}) {
    const Scene scene({kind, true, 7, 1, 96, {5, 2}});
    const DecodePlan plan = cut(scene, 3);
    const DecodeOutcome first = run(scene, plan, 1);
    for (const std::uint64_t seed : {100, 200, 300}) {
      EXPECT_TRUE(run(scene, plan, seed) == first) << "seed " << seed;
    }
  }
}

TEST(HackDecodeDevice, NoCompanyChangesABit) {
  const std::vector<std::int32_t> blocks = {2, 10, 0, 3, 1};
  const HackKind kind{2, 2, 0};
  const Scene together({kind, true, 4, 2, 64, blocks});
  const DecodeShape cuts = *hack_decode_shape(kind, 4, 2, 64, 2);
  const DecodeOutcome all = run(together, plan_decode(together.tokens(), cuts));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Scene alone({kind, true, 4, 2, 64, {blocks[i]}});
    const DecodeOutcome own = run(alone, plan_decode(alone.tokens(), cuts));
    const auto begin = all.result.begin() + static_cast<std::ptrdiff_t>(i * 4 * 64);
    EXPECT_TRUE(std::equal(own.result.begin(), own.result.end(), begin)) << "sequence " << i;
  }
}

TEST(HackDecodeShape, KindsThatThereAre) {
  for (const HackKind& kind : kHackKinds) {
    const HackShape shape = hack_shape(kind, 128, true);
    ASSERT_TRUE(hack_kind(shape).ok());
    EXPECT_TRUE(*hack_kind(shape) == kind);
    EXPECT_EQ(hack_decode_shape(kind, 8, 2, 128, 132)->queries, kDecodeColumns);
  }
  HackShape shape = hack_shape({2, 2, 0}, 128, true);
  shape.k.meta = hack::Meta::kBf16;
  EXPECT_EQ(hack_kind(shape).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(hack_kind(hack_shape({8, 2, 0}, 128, true)).status().code(), Code::kInvalidArgument);
  for (const int head_dim : {0, 8, 24, 272}) {
    EXPECT_EQ(hack_decode_shape({2, 2, 0}, 8, 2, head_dim, 132).status().code(),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(hack_decode_shape({4, 4, 0}, 8, 2, 144, 132).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(hack_decode_shape({2, 2, 0}, 8, 3, 64, 132).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(hack_decode_shape({8, 8, 0}, 8, 2, 64, 132).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::hack_fixture
