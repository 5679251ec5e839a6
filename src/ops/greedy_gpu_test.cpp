// Greedy choice on a GPU against the CPU's sampler, with poison around all that it writes. Skipped
// where no GPU is; there greedy_device_test.cpp runs the same device code on emulated threads.
// Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "ops/greedy_gpu.h"

#include <gtest/gtest.h>

#include "gpu/gpu_fixture.h"
#include "ops/greedy_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;
using greedy_fixture::Chosen;
using greedy_fixture::Scene;
using greedy_fixture::special_rows;

class GreedyGpuTest : public gpu_fixture::GpuTest {
 protected:
  Chosen run(const Scene& scene, bool wants_logprobs = true,
             DeviceBytes::Around around = DeviceBytes::Around::kPoison) {
    const DeviceBytes logits(stream(), view(scene.logits()), 0, around);
    const auto poisoned = [&](std::size_t bytes) {
      return DeviceBytes(stream(), Bytes(bytes, DeviceBytes::kPoison), 0, around);
    };
    const DeviceBytes parts = poisoned(scene.parts() * sizeof(GreedyPart));
    const DeviceBytes tokens = poisoned(scene.rows() * sizeof(std::int32_t));
    const DeviceBytes logprobs = poisoned(wants_logprobs ? scene.rows() * sizeof(float) : 0);
    check(greedy_on_gpu(
        {.logits = reinterpret_cast<const float*>(logits.data()),
         .rows = scene.rows(),
         .vocab = scene.vocab(),
         .parts = reinterpret_cast<GreedyPart*>(parts.data()),
         .tokens = reinterpret_cast<std::int32_t*>(tokens.data()),
         .logprobs = wants_logprobs ? reinterpret_cast<float*>(logprobs.data()) : nullptr},
        stream()));
    check(stream().synchronize());
    parts.read();
    return {values_of<std::int32_t>(tokens.read()), values_of<float>(logprobs.read())};
  }
  void expect_right(const Scene& scene) {
    const Chosen chosen = run(scene);
    scene.expect_right(chosen.tokens, chosen.logprobs);
    EXPECT_EQ(run(scene, false).tokens, chosen.tokens);
  }
};

TEST_F(GreedyGpuTest, SmallOnes) {
  for (const int vocab : {5, 8200, 9001}) {
    const Scene scene = special_rows(vocab);
    const Chosen chosen = run(scene, true, DeviceBytes::Around::kNothing);
    scene.expect_right(chosen.tokens, chosen.logprobs);
    if (HasFatalFailure()) return;
  }
}

TEST_F(GreedyGpuTest, VocabulariesOfAllSizes) {
  for (const int vocab : {1,    2,    3,     31,    32,    1000,  1024,   1025,   8191,   8192,
                          8193, 8196, 16384, 32000, 50257, 65537, 128256, 151936, 262144, 270338}) {
    for (const int rows : {1, 9}) {
      expect_right(Scene(rows, vocab, vocab));
      if (HasFatalFailure()) return;
    }
  }
  expect_right(Scene(512, 4096));
}

TEST_F(GreedyGpuTest, SpecialValuesRankAsOnTheCpu) {
  for (const int vocab : {2, 5, 1000, 8192, 9001, 9004, 128256}) {
    expect_right(special_rows(vocab));
    if (HasFatalFailure()) return;
  }
}

TEST_F(GreedyGpuTest, TheBestTokenIsAnywhere) {
  constexpr int kVocab = 9004;
  constexpr int kRows = 500, kStep = 7;
  for (int first = 0; first < kVocab; first += kRows * kStep) {
    Scene scene(kRows, kVocab);
    for (int i = 0; i < kRows; ++i) {
      scene.row(i)[std::min(first + kStep * i, kVocab - 1)] = 700;
      scene.row(i)[kVocab - 1 - i] = 700;
    }
    expect_right(scene);
    if (HasFatalFailure()) return;
  }
}

TEST_F(GreedyGpuTest, NothingToDo) { EXPECT_TRUE(run(Scene(0, 1000)).tokens.empty()); }

TEST_F(GreedyGpuTest, EveryRunHasTheSameBits) {
  const Scene scene(64, 128256);
  const Chosen first = run(scene);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(run(scene) == first);
}

TEST_F(GreedyGpuTest, SaysWhatItCannotDo) {
  EXPECT_EQ(greedy_on_gpu({}, stream()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
