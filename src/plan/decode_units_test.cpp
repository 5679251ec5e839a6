// Every token of every query head in exactly one unit, and cuts that do not depend on company.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_units.h"

#include <gtest/gtest.h>

#include <numeric>

#include "format/shape.h"

namespace kvlane {
namespace {

const DecodeShape kDecodeShapes[] = {{8, 8, 8, 396}, {32, 8, 8, 396}, {29, 1, 16, 100},
                                     {48, 2, 16, 7}, {1, 1, 8, 1},    {32, 8, 8, 198, 4}};

TEST(DecodeUnits, CoverEveryTokenOfEveryHeadOnce) {
  const std::vector<std::int32_t> tokens = {0, 1, 63, 64, 65, 1000, 0, 513, 131072, 7};
  for (const DecodeShape& shape : kDecodeShapes) {
    const DecodePlan plan = plan_decode(tokens, shape);
    ASSERT_EQ(plan.first_state.size(), tokens.size() + 1);
    std::vector<int> writers(plan.first_state.back());
    std::vector<std::vector<std::int64_t>> covered(tokens.size(),
                                                   std::vector<std::int64_t>(shape.heads));
    for (const DecodeUnit& unit : plan.units) {
      EXPECT_EQ(unit.first_token % kBlockTokens, 0);
      EXPECT_LT(unit.first_token, unit.end_token);
      EXPECT_TRUE(unit.end_token % kBlockTokens == 0 || unit.end_token == tokens[unit.sequence]);
      EXPECT_LE(unit.queries, shape.queries);
      EXPECT_EQ(decode_unit_blocks(tokens[unit.sequence], shape) % shape.step, 0);
      const int split = (unit.first_state - plan.first_state[unit.sequence]) / shape.heads;
      EXPECT_EQ(unit.first_token,
                split * kBlockTokens * decode_unit_blocks(tokens[unit.sequence], shape))
          << "states are not in the order of tokens";
      for (int i = 0; i < unit.queries; ++i) {
        const int head = unit.first_head + i;
        EXPECT_EQ(unit.first_state + i,
                  plan.first_state[unit.sequence] + split * shape.heads + head);
        ++writers[unit.first_state + i];
        covered[unit.sequence][head] += unit.end_token - unit.first_token;
      }
    }
    for (const int count : writers) EXPECT_EQ(count, 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      for (const std::int64_t count : covered[i]) EXPECT_EQ(count, tokens[i]);
    }
  }
}

TEST(DecodeUnits, ASequenceIsCutInTheSameWayInAnyCompany) {
  const std::vector<std::int32_t> together = {5000, 40, 0, 131072, 5000};
  for (const DecodeShape& shape : kDecodeShapes) {
    const DecodePlan all = plan_decode(together, shape);
    for (std::size_t i = 0; i < together.size(); ++i) {
      const DecodePlan alone = plan_decode({&together[i], 1}, shape);
      EXPECT_EQ(alone.first_state.back(), all.first_state[i + 1] - all.first_state[i]);
    }
  }
}

TEST(DecodeUnits, OneLongSequenceFillsTheDeviceAndShortOnesAreNotCut) {
  for (const DecodeShape& shape : kDecodeShapes) {
    const std::int32_t tokens = 131072;
    const std::size_t units = plan_decode({&tokens, 1}, shape).units.size();
    const int columns =
        static_cast<int>(plan_decode(std::vector<std::int32_t>{1}, shape).units.size());
    EXPECT_LE(units, std::max(shape.units, columns));
    const int splits = std::max(1, shape.units / columns);
    EXPECT_GE(units, columns * std::min(splits * 3 / 4, 2048 / kDecodeUnitBlocksMin));
    const std::int32_t few = kDecodeUnitBlocksMin * kBlockTokens;
    EXPECT_EQ(plan_decode({&few, 1}, shape).units.size(), columns);
  }
}

TEST(DecodeUnits, NoneIsLongerThanItMayBe) {
  for (const DecodeShape& shape :
       {DecodeShape{32, 8, 8, 132, 4, 64}, DecodeShape{8, 8, 8, 1, 4, 8}}) {
    const std::int32_t tokens = 1'000'000;
    const DecodePlan plan = plan_decode({&tokens, 1}, shape);
    int longest = 0;
    for (const DecodeUnit& unit : plan.units) {
      longest = std::max(longest, unit.end_token - unit.first_token);
    }
    EXPECT_EQ(longest, shape.most * kBlockTokens);
  }
}

TEST(DecodeUnits, LongestComeFirst) {
  const DecodePlan plan = plan_decode(std::vector<std::int32_t>{3, 100, 64, 480}, {4, 2, 8, 396});
  for (std::size_t i = 1; i < plan.units.size(); ++i) {
    EXPECT_GE(plan.units[i - 1].end_token - plan.units[i - 1].first_token,
              plan.units[i].end_token - plan.units[i].first_token);
  }
  EXPECT_EQ(plan.units.front().sequence, 3);
  EXPECT_TRUE(plan_decode({}, {4, 2, 8, 396}).units.empty());
}

}  // namespace
}  // namespace kvlane
