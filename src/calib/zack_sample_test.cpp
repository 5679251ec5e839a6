// What is kept beside the sums is what computing it alone gives.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "calib/calibrate_zack.h"
#include "model/forward_fixture.h"

namespace kvlane {
namespace {

using forward_fixture::load;

void expect_equal(const ZackSample& a, const ZackSample& b) {
  ASSERT_EQ(a.sequences().size(), b.sequences().size());
  for (std::size_t i = 0; i < a.sequences().size(); ++i) {
    const ZackSample::Rows& left = a.sequences()[i];
    const ZackSample::Rows& right = b.sequences()[i];
    EXPECT_EQ(left.tokens, right.tokens);
    EXPECT_EQ(left.query_parts, right.query_parts);
    EXPECT_EQ(left.k, right.k) << i;
    EXPECT_EQ(left.v, right.v) << i;
    EXPECT_EQ(left.queries, right.queries) << i;
  }
}

TEST(ZackSample, IsTheSameBesideSumsAfterAnInterruptionAndAlone) {
  for (const char* const name : {"qwen3-gqa-bf16", "llama-mqa-f32"}) {
    SCOPED_TRACE(name);
    const auto model = load(name);
    const int context = calibration_sequence(*model);
    // Whole sequences and one that is cut inside a block.
    const std::size_t count = 2 * std::size_t(context) + 150;
    std::vector<std::int32_t> tokens(count);
    for (std::size_t i = 0; i < count; ++i) {
      tokens[i] = static_cast<std::int32_t>((3 + i * 7 + i * i % 13) % model->config().vocab);
    }
    ZackSample alone(*model, count);
    ASSERT_TRUE(alone.complete(*model, tokens).ok());
    ASSERT_EQ(alone.sequences().size(), 3U);
    EXPECT_EQ(alone.sequences()[2].tokens, 128);
    const std::size_t values = std::size_t(model->config().kv_heads) * model->config().head_dim;
    for (const ZackSample::Rows& rows : alone.sequences()) {
      for (const auto& plane : rows.k) EXPECT_EQ(plane.size(), rows.tokens * values);
      EXPECT_NE(rows.k, rows.v);
    }
    ZackSample beside(*model, count);
    ASSERT_TRUE(sum_for_zack(*model, tokens, {.sample = &beside}).ok());
    expect_equal(beside, alone);
    // Of the sequences that another process had summed nothing is kept.
    ZackSample late(*model, count);
    const SequenceHooks hooks{
        .on_input = {},
        .on_queries = [&](int layer, std::span<const std::uint16_t> queries,
                          int parts) { late.keep_queries(2, layer, queries, parts); },
        .on_pass = [&](const BlockTable& table, int) { late.keep_pass(2, table); }};
    const auto rest = std::span(tokens).subspan(2 * std::size_t(context));
    ASSERT_TRUE(run_sequences(
                    *model, rest, [](const BlockTable&) {}, {}, hooks)
                    .ok());
    ASSERT_TRUE(late.complete(*model, tokens).ok());
    expect_equal(late, alone);
  }
}

}  // namespace
}  // namespace kvlane
