// Every run of every KV head in exactly one piece, its states in the order of the sequence, and no
// cut that depends on company or on the grid.
// SPDX-License-Identifier: Apache-2.0
#include "plan/narrow_decode_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "format/shape.h"

namespace kvlane {
namespace {

constexpr int kGroup = 4;
const std::vector<HeadWidths> kWidths = {{16, 128}, {64, 48}, {128, 16}};
constexpr int kHeads = 3 * kGroup;

// So many blocks each, behind `skipped` that are not sealed.
std::vector<NarrowSpan> spans_of(const std::vector<std::int32_t>& blocks, int skipped) {
  std::vector<NarrowSpan> spans;
  std::int32_t state = 5;
  for (const std::int32_t count : blocks) {
    spans.push_back({skipped, skipped + count, state});
    state += spans.back().runs() * kHeads + 7;
  }
  return spans;
}

TEST(NarrowDecodePlan, CoversEveryRunOnce) {
  const auto spans = spans_of({0, 1, 7, 8, 9, 64, 0, 513, 2048, 3}, 2);
  NarrowDecodePlanner planner;
  for (const int machines : {1, 5, 528}) {
    for (const bool longest_first : {true, false}) {
      const NarrowDecodePlan& plan =
          planner.plan(spans, kWidths, {kHeads, machines, longest_first});
      ASSERT_EQ(plan.first.size(), std::size_t(machines) + 1);
      EXPECT_EQ(plan.first.back(), static_cast<std::int32_t>(plan.pieces.size()));
      std::vector<std::vector<int>> times(spans.size());  // that [run][KV head] is done
      for (std::size_t i = 0; i < spans.size(); ++i) {
        times[i].resize(std::size_t(spans[i].runs()) * kWidths.size());
      }
      for (const NarrowPiece& piece : plan.pieces) {
        const NarrowSpan& span = spans[piece.sequence];
        const int kv_head = piece.first_query / kGroup;
        EXPECT_EQ(piece.first_query % kGroup, 0);
        EXPECT_EQ(piece.k, kWidths[kv_head].k);
        EXPECT_EQ(piece.v, kWidths[kv_head].v);
        EXPECT_EQ(piece.page, kv_head == 0 ? 0 : kv_head == 1 ? 128 * 144 : 128 * (144 + 112));
        EXPECT_LT(piece.first_block, piece.end_block);
        EXPECT_EQ((piece.first_block - span.first_block) % kNarrowRunBlocks, 0);
        EXPECT_TRUE((piece.end_block - span.first_block) % kNarrowRunBlocks == 0 ||
                    piece.end_block == span.end_block);
        const int run = (piece.first_block - span.first_block) / kNarrowRunBlocks;
        EXPECT_EQ(piece.first_state, span.first_state + run * kHeads + piece.first_query);
        for (int at = piece.first_block; at < piece.end_block; at += kNarrowRunBlocks) {
          const int of = (at - span.first_block) / kNarrowRunBlocks;
          ++times[piece.sequence][of * kWidths.size() + kv_head];
        }
      }
      for (const auto& of_sequence : times) {
        for (const int count : of_sequence) EXPECT_EQ(count, 1) << machines << " machines";
      }
    }
  }
}

TEST(NarrowDecodePlan, BalancesBetterThanRoundRobin) {
  const auto spans = spans_of({500, 30, 200, 64, 8, 400, 100, 256}, 0);
  const auto makespan = [&](const NarrowDecodePlan& plan) {
    std::int64_t most = 0;
    for (std::size_t m = 0; m + 1 < plan.first.size(); ++m) {
      std::int64_t load = 0;
      for (int i = plan.first[m]; i < plan.first[m + 1]; ++i) {
        const NarrowPiece& piece = plan.pieces[i];
        load += std::int64_t{piece.end_block - piece.first_block} * (piece.k + piece.v + 1);
      }
      most = std::max(most, load);
    }
    return most;
  };
  NarrowDecodePlanner planner;
  const std::int64_t best = makespan(planner.plan(spans, kWidths, {kHeads, 16, true}));
  EXPECT_LT(best, makespan(planner.plan(spans, kWidths, {kHeads, 16, false})));
}

TEST(NarrowDecodePlan, WithoutSealedBlocksThereIsNothingToDo) {
  NarrowDecodePlanner planner;
  for (const std::vector<std::int32_t>& blocks : {std::vector<std::int32_t>{}, {0, 0}}) {
    const NarrowDecodePlan& plan = planner.plan(spans_of(blocks, 0), kWidths, {kHeads, 3});
    EXPECT_TRUE(plan.pieces.empty());
    EXPECT_EQ(plan.first, (std::vector<std::int32_t>{0, 0, 0, 0}));
  }
}

}  // namespace
}  // namespace kvlane
