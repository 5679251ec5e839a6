// Device code of attention that dequantises on emulated blocks of threads, against double
// precision.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_dequantise_device.h"

#include <gtest/gtest.h>

#include <memory>

#include "attention/decode_merge_device.h"
#include "bench/gpu_dequantise_cores_device.h"
#include "bench/gpu_dequantise_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane {
namespace {

using dequantise_fixture::kAll;
using dequantise_fixture::kDim;
using dequantise_fixture::plan_of;
using dequantise_fixture::Prepared;
using dequantise_fixture::Scene;
using dequantise_fixture::scene;
using hack_fixture::kPoisoned;

template <class Shared, class Kernel>
void run_poisoned(std::uint64_t seed, const Kernel& kernel) {
  const auto shared = std::make_unique<Shared>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(Shared));
  gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed,
                 [&](gpu::EmulatedThread& thread) { kernel(thread, *shared); });
}

void attend(GpuDequantiser how, const HackDecodeBatch& batch, const DecodeUnit& unit,
            std::uint64_t seed) {
  const int group = batch.heads / batch.kv_heads;
  if (how == GpuDequantiser::kMatrixWhole) {
    run_poisoned<DequantiseShared>(seed, [&](auto& t, DequantiseShared& shared) {
      attend_dequantised<DequantiseForm::kWhole>(t, batch, unit, shared);
    });
  } else if (how == GpuDequantiser::kMatrixSplit) {
    run_poisoned<DequantiseShared>(seed, [&](auto& t, DequantiseShared& shared) {
      attend_dequantised<DequantiseForm::kSplit>(t, batch, unit, shared);
    });
  } else {
    run_poisoned<DequantiseCoresShared>(seed, [&](auto& t, DequantiseCoresShared& shared) {
      if (group == 1) {
        attend_dequantised_on_cores<1>(t, batch, unit, shared);
      } else if (group <= 4) {
        attend_dequantised_on_cores<4>(t, batch, unit, shared);
      } else {
        attend_dequantised_on_cores<kDecodeColumns>(t, batch, unit, shared);
      }
    });
  }
}

struct Outcome {
  std::vector<float> result, max, sum;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(const Scene& scene, GpuDequantiser how, std::uint64_t seed = 1) {
  const DecodePlan plan = plan_of(scene);
  const std::size_t states = plan.first_state.back(), rows = scene.rows();
  Prepared prepared(scene);
  std::vector<float> max(states, kPoisoned), sum(states, kPoisoned);
  hack_fixture::Lines out = hack_fixture::poisoned(states * kDim * sizeof(float));
  hack_fixture::Lines result = hack_fixture::poisoned(rows * kDim * sizeof(float));
  Outcome o{{}, std::vector<float>(rows, kPoisoned), std::vector<float>(rows, kPoisoned)};
  HackDecodeBatch batch = scene.batch();
  batch.queries = prepared.pointers();
  batch.max = max.data();
  batch.sum = sum.data();
  batch.out = reinterpret_cast<float*>(out.data());
  for (const DecodeUnit& unit : plan.units) attend(how, batch, unit, seed++);
  const DecodeMerge merge{.first_state = plan.first_state.data(),
                          .sequences = static_cast<std::int32_t>(scene.shape().blocks.size()),
                          .heads = batch.heads,
                          .head_dim = kDim,
                          .max = batch.max,
                          .sum = batch.sum,
                          .out = batch.out,
                          .result_f32 = reinterpret_cast<float*>(result.data()),
                          .result_bf16 = nullptr,
                          .total_max = o.max.data(),
                          .total_sum = o.sum.data(),
                          .total_out = nullptr};
  for (std::size_t row = 0; row < rows; ++row) {
    gpu::run_block(gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
      merge_states(thread, merge, static_cast<int>(row));
    });
  }
  o.result.assign(merge.result_f32, merge.result_f32 + rows * kDim);
  return o;
}

void expect_right(const Scene& scene) {
  for (const GpuDequantiser how : kAll) {
    const Outcome o = run(scene, how);
    dequantise_fixture::expect_right(scene, how, o.result, o.max, o.sum);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(GpuDequantiseDevice, EveryGroup) {
  for (const int group : {1, 3, 4, 8, 9}) {
    expect_right(scene(group, 1, {5}));
    if (HasFatalFailure()) return;
  }
}

// Units of 1, 2, 3, 4, 5 and 9 blocks, several KV heads, blocks in no order.
TEST(GpuDequantiseDevice, EveryLength) {
  for (const int group : {1, 4, 8}) {
    expect_right(scene(group, 2, {0, 1, 2, 3, 4, 14, 0}));
    if (HasFatalFailure()) return;
  }
}

// One token has nearly all weight, or all tokens have about the same.
TEST(GpuDequantiseDevice, SharpAndFlatWeights) {
  for (const float size : {0.0F, 0.01F, 30.0F}) {
    expect_right(scene(2, 1, {6}, size));
    if (HasFatalFailure()) return;
  }
}

TEST(GpuDequantiseDevice, NoOrderOfThreadsChangesABit) {
  const Scene one = scene(5, 1, {6});
  for (const GpuDequantiser how : kAll) {
    const Outcome first = run(one, how);
    for (const std::uint64_t seed : {100, 200}) EXPECT_TRUE(run(one, how, seed) == first);
  }
}

}  // namespace
}  // namespace kvlane
