// Every token of every query head in exactly one unit, of the kind that the window says.
// SPDX-License-Identifier: Apache-2.0
#include "plan/coded_decode_units.h"

#include <gtest/gtest.h>

#include "format/shape.h"

namespace kvlane {
namespace {

constexpr DecodeShape kSealedShape{24, 2, 8, 396}, kRowsShape{24, 2, 16, 264};
const KvWindow kWindows[] = {{0, 0}, {1, 0}, {0, 1}, {2, 3}, {40, 40}};

TEST(CodedDecodeUnits, CoverEveryTokenOfEveryHeadOnceInItsKind) {
  const std::vector<std::int32_t> tokens = {0, 1, 64, 65, 193, 1000, 0, 40001};
  for (const KvWindow& window : kWindows) {
    const CodedDecodePlan plan = plan_coded_decode(tokens, window, kSealedShape, kRowsShape);
    ASSERT_EQ(plan.first_state.size(), tokens.size() + 1);
    std::vector<int> writers(plan.first_state.back());
    // Of each sequence: how often a token is read by a head.
    std::vector<std::vector<int>> read(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) read[i].assign(tokens[i], 0);
    for (const bool sealed : {true, false}) {
      for (const DecodeUnit& unit : sealed ? plan.sealed : plan.rows) {
        const int own = (tokens[unit.sequence] - 1) / kBlockTokens;
        EXPECT_EQ(unit.first_token % kBlockTokens, 0);
        EXPECT_LT(unit.first_token, unit.end_token);
        EXPECT_LE(unit.queries, (sealed ? kSealedShape : kRowsShape).queries);
        for (int token = unit.first_token; token < unit.end_token; ++token) {
          EXPECT_EQ(window.reads_rows(token / kBlockTokens, own), !sealed) << token;
          read[unit.sequence][token] += unit.queries;
        }
        for (int i = 0; i < unit.queries; ++i) {
          const int state = unit.first_state + i - plan.first_state[unit.sequence];
          EXPECT_EQ(state % kSealedShape.heads, unit.first_head + i);
          ++writers[unit.first_state + i];
        }
      }
    }
    for (const int count : writers) EXPECT_EQ(count, 1);
    for (const auto& counts : read) {
      for (const int count : counts) ASSERT_EQ(count, kSealedShape.heads);
    }
  }
}

// Rows are those of the other plan, and runs of sealed pages leave states before theirs.
TEST(CodedDecodeUnits, NarrowPagesAreLeftToTheirPlanner) {
  const std::vector<std::int32_t> tokens = {0, 1, 64, 65, 193, 1000, 0, 40001};
  for (const KvWindow& window : kWindows) {
    const CodedDecodePlan like = plan_coded_decode(tokens, window, kSealedShape, kRowsShape);
    const NarrowCodedPlan plan = plan_narrow_coded_decode(tokens, window, kRowsShape);
    ASSERT_EQ(plan.sealed.size(), tokens.size());
    ASSERT_EQ(plan.first_state.size(), tokens.size() + 1);
    ASSERT_EQ(plan.rows.size(), like.rows.size());
    std::vector<int> writers(plan.first_state.back());
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
      EXPECT_EQ(plan.rows[i].sequence, like.rows[i].sequence);
      EXPECT_EQ(plan.rows[i].first_token, like.rows[i].first_token);
      EXPECT_EQ(plan.rows[i].end_token, like.rows[i].end_token);
      for (int j = 0; j < plan.rows[i].queries; ++j) ++writers[plan.rows[i].first_state + j];
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const NarrowSpan& span = plan.sealed[i];
      EXPECT_EQ(span.first_state, plan.first_state[i]);
      const int own = tokens[i] == 0 ? 0 : (tokens[i] - 1) / kBlockTokens;
      for (int block = 0; block < own; ++block) {
        const bool sealed = block >= span.first_block && block < span.end_block;
        EXPECT_NE(sealed, window.reads_rows(block, own)) << block << " of " << own;
      }
      EXPECT_LE(span.end_block, own);
      for (int j = 0; j < span.runs() * kRowsShape.heads; ++j) ++writers[span.first_state + j];
    }
    for (const int count : writers) EXPECT_EQ(count, 1);
  }
}

TEST(CodedDecodeUnits, ASequenceIsCutInTheSameWayInAnyCompany) {
  for (const KvWindow& window : kWindows) {
    const CodedDecodePlan together =
        plan_coded_decode(std::vector{9000, 70, 5000}, window, kSealedShape, kRowsShape);
    const CodedDecodePlan alone =
        plan_coded_decode(std::vector{5000}, window, kSealedShape, kRowsShape);
    for (const bool sealed : {true, false}) {
      std::vector<DecodeUnit> own;
      for (DecodeUnit unit : sealed ? together.sealed : together.rows) {
        if (unit.sequence != 2) continue;
        unit.first_state -= together.first_state[2];
        own.push_back(unit);
      }
      const auto& expected = sealed ? alone.sealed : alone.rows;
      ASSERT_EQ(own.size(), expected.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(own[i].first_token, expected[i].first_token);
        EXPECT_EQ(own[i].end_token, expected[i].end_token);
        EXPECT_EQ(own[i].first_state, expected[i].first_state);
      }
    }
  }
}

}  // namespace
}  // namespace kvlane
