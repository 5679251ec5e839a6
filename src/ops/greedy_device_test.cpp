// Device code of greedy choice on emulated threads, against the CPU's sampler.
// SPDX-License-Identifier: Apache-2.0
#include "ops/greedy_device.h"

#include <gtest/gtest.h>

#include <cstring>

#include "gpu/emulated_block.h"
#include "ops/greedy_fixture.h"

namespace kvlane {
namespace {

using greedy_fixture::Chosen;
using greedy_fixture::kNan;
using greedy_fixture::Scene;
using greedy_fixture::special_rows;

Chosen run(const Scene& scene, std::uint64_t seed = 1, bool wants_logprobs = true) {
  Chosen chosen{std::vector<std::int32_t>(scene.rows(), -77),
                std::vector<float>(wants_logprobs ? scene.rows() : 0, kNan)};
  std::vector<GreedyPart> parts(scene.parts(), {kNan, -77, kNan});
  const GreedyRows rows{scene.logits().data(), scene.rows(),
                        scene.vocab(),         parts.data(),
                        chosen.tokens.data(),  wants_logprobs ? chosen.logprobs.data() : nullptr};
  for (int row = 0; row < rows.rows; ++row) {
    for (int part = 0; part < greedy_parts(rows.vocab); ++part) {
      GreedyShared shared;
      std::memset(static_cast<void*>(&shared), 0xFF, sizeof(shared));
      gpu::run_block(kGreedyThreads, seed++, [&](gpu::EmulatedThread& thread) {
        scan_logits(thread, rows, row, part, shared);
      });
    }
    gpu::run_block(gpu::kWarpThreads, seed++,
                   [&](gpu::EmulatedThread& thread) { choose_token(thread, rows, row); });
  }
  return chosen;
}

// Rows that begin at multiples of 16 bytes and others; several parts, more than a warp has lanes.
TEST(GreedyDevice, VocabulariesOfAllSizes) {
  for (const int vocab : {1, 2, 5, 31, 1000, 1024, 8191, 8192, 8193, 8196, 16390, 270338}) {
    const Scene scene(vocab > 100000 ? 2 : 4, vocab, vocab);
    const Chosen chosen = run(scene);
    scene.expect_right(chosen.tokens, chosen.logprobs);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(run(scene, 1, false).tokens, chosen.tokens);
  }
}

TEST(GreedyDevice, SpecialValuesRankAsOnTheCpu) {
  for (const int vocab : {2, 5, 1000, 8192, 9001, 9004}) {
    const Scene scene = special_rows(vocab);
    const Chosen chosen = run(scene);
    scene.expect_right(chosen.tokens, chosen.logprobs);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The best token is anywhere, alone or with an equal one.
TEST(GreedyDevice, EqualLogitsRankByLowerId) {
  constexpr int kVocab = 9000;
  constexpr int kPlaces[][2] = {{0, 8999},    {3, 4},       {31, 32},     {1023, 1024},
                                {4095, 4096}, {4096, 4095}, {8191, 8192}, {5000, 17}};
  Scene scene(std::size(kPlaces), kVocab);
  for (int i = 0; i < scene.rows(); ++i) {
    for (const int place : kPlaces[i]) scene.row(i)[place] = 700;
  }
  const Chosen chosen = run(scene);
  for (int i = 0; i < scene.rows(); ++i) {
    EXPECT_EQ(chosen.tokens[i], std::min(kPlaces[i][0], kPlaces[i][1]));
  }
  scene.expect_right(chosen.tokens, chosen.logprobs);
}

TEST(GreedyDevice, NoOrderOfThreadsChangesABit) {
  const Scene scene(2, 10001);
  const Chosen first = run(scene);
  for (const std::uint64_t seed : {100, 200, 300}) EXPECT_TRUE(run(scene, seed) == first);
}

TEST(GreedyDevice, LauncherRefusesWhatItCannotDo) {
  alignas(16) float logits[8];
  GreedyPart part;
  std::int32_t token;
  const GreedyRows right{logits, 1, 4, &part, &token, nullptr};
  EXPECT_TRUE(check_greedy(right).ok());
  const auto expect_refused = [&](auto change) {
    GreedyRows rows = right;
    change(rows);
    EXPECT_EQ(check_greedy(rows).code(), Code::kInvalidArgument);
  };
  expect_refused([](GreedyRows& rows) { rows.rows = -1; });
  for (const int vocab : {0, -4, kGreedyVocabMax + 1}) {
    expect_refused([&](GreedyRows& rows) { rows.vocab = vocab; });
  }
  expect_refused([](GreedyRows& rows) { rows.logits = nullptr; });
  expect_refused([&](GreedyRows& rows) { rows.logits = logits + 1; });
  expect_refused([](GreedyRows& rows) { rows.parts = nullptr; });
  expect_refused([](GreedyRows& rows) { rows.tokens = nullptr; });
}

}  // namespace
}  // namespace kvlane
