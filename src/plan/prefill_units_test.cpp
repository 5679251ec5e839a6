// Every row of every query head in exactly one unit, and the order of units.
// SPDX-License-Identifier: Apache-2.0
#include "plan/prefill_units.h"

#include <gtest/gtest.h>

#include "format/shape.h"

namespace kvlane {
namespace {

const PrefillShape kPrefillShapes[] = {
    {8, 8, 128}, {32, 8, 128}, {29, 1, 64}, {48, 2, 128}, {1, 1, 1}};

TEST(PrefillUnits, CoverEveryRowOfEveryHeadOnce) {
  // Rows from anywhere in a sequence, some of none, and rows of the launch that no span has.
  const std::vector<PrefillSpan> spans = {{0, 300, 0},     {63, 1, 300}, {64, 0, 301},
                                          {70, 58, 301},   {5, 64, 362}, {0, 0, 426},
                                          {9000, 129, 426}};
  constexpr int kRows = 555, kUnused = 359;  // 359 ... 361
  for (const PrefillShape& shape : kPrefillShapes) {
    const int group = shape.heads / shape.kv_heads;
    std::vector<int> takers(std::size_t(kRows) * shape.heads);
    for (const PrefillUnit& unit : plan_prefill(spans, shape)) {
      const PrefillSpan& span = spans[unit.sequence];
      EXPECT_EQ(unit.position, span.position);
      EXPECT_EQ(unit.first_row, span.first_row);
      EXPECT_GE(unit.pairs, 1);
      EXPECT_LE(unit.pairs, shape.pairs);
      for (int pair = unit.first_pair; pair < unit.first_pair + unit.pairs; ++pair) {
        ASSERT_LT(pair / group, span.rows);
        const int row = unit.first_row + pair / group;
        ++takers[row * shape.heads + unit.kv_head * group + pair % group];
      }
    }
    for (int i = 0; i < kRows * shape.heads; ++i) {
      const int row = i / shape.heads;
      EXPECT_EQ(takers[i], row >= kUnused && row < kUnused + 3 ? 0 : 1) << "row " << row;
    }
  }
}

TEST(PrefillUnits, LongestComeFirst) {
  const std::vector<PrefillSpan> spans = {{0, 1000, 0}, {4000, 100, 1000}, {10, 1, 1100}};
  for (const PrefillShape& shape : kPrefillShapes) {
    const std::vector<PrefillUnit> units = plan_prefill(spans, shape);
    const int group = shape.heads / shape.kv_heads;
    for (std::size_t i = 1; i < units.size(); ++i) {
      EXPECT_GE(blocks_for(prefill_tokens(units[i - 1], group)),
                blocks_for(prefill_tokens(units[i], group)));
    }
    EXPECT_EQ(units.front().sequence, 1);
    EXPECT_EQ(units.front().kv_head, 0);
  }
}

TEST(PrefillUnits, TokensAreThoseUpToTheLastRow) {
  EXPECT_EQ(prefill_tokens({.pairs = 1}, 4), 1);
  EXPECT_EQ(prefill_tokens({.pairs = 128}, 4), 32);
  EXPECT_EQ(prefill_tokens({.first_pair = 126, .pairs = 3, .position = 100}, 4), 133);
}

TEST(PrefillUnits, PartsAreAllPairsInOrder) {
  const PrefillUnit unit{.kv_head = 3, .first_pair = 256, .pairs = 100, .position = 7};
  const PrefillUnit first = part_of_unit(unit, 0, 64), second = part_of_unit(unit, 1, 64);
  EXPECT_EQ(first.first_pair, 256);
  EXPECT_EQ(first.pairs, 64);
  EXPECT_EQ(second.first_pair, 320);
  EXPECT_EQ(second.pairs, 36);
  EXPECT_EQ(second.kv_head, 3);
  EXPECT_EQ(second.position, 7);
  EXPECT_EQ(part_of_unit(unit, 2, 64).pairs, 0);
  EXPECT_EQ(part_of_unit({.pairs = 64}, 1, 64).pairs, 0);
}

TEST(PrefillUnits, NothingToDo) {
  EXPECT_TRUE(plan_prefill({}, {32, 8, 128}).empty());
  EXPECT_TRUE(plan_prefill(std::vector<PrefillSpan>{{7, 0, 0}, {0, 0, 0}}, {32, 8, 128}).empty());
}

}  // namespace
}  // namespace kvlane
