// Calibration against counting what an engine's cache holds, and across domains of text.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_codebook.h"

#include <gtest/gtest.h>

#include <numeric>

#include "calib/calibration_fixture.h"
#include "codec/exponents.h"
#include "model/forward.h"
#include "model/forward_fixture.h"

namespace kvlane {
namespace {

using calibration_fixture::tokens_of;
using forward_fixture::load;

// The same passes by hand: one sequence, one layer at a time, with a plain count.
TEST(CalibrateCodebook, IsWhatTheCacheHolds) {
  const auto model = load("llama-gqa-bf16-llama3-sharded");
  const std::vector<std::int32_t> tokens = tokens_of(*model, 150, 3);
  const auto file = calibrate_codebooks(*model, tokens, {});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tokens, 150U);
  EXPECT_EQ(file->model, model->identity());

  const KvShape shape = model->config().kv_shape();
  auto pool = BlockPool::create(shape, 3 * shape.block_bytes());
  BlockTable table(*pool);
  ASSERT_TRUE(table.grow(150).ok());
  const auto forward = std::move(*Forward::create(*model, 150, 1));
  const ForwardSpan span{&table, tokens, 0};
  ASSERT_TRUE(forward->run({&span, 1}, {}).ok());
  ASSERT_EQ(file->books.size(), 2U * shape.layers);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int part = 0; part < 2; ++part) {
      std::array<std::uint64_t, 256> counts{};
      for (int token = 0; token < 150; ++token) {
        for (int head = 0; head < shape.kv_heads; ++head) {
          const std::uint16_t* row = pool->page(table.id(token / 64), layer, head) +
                                     part * shape.page_plane_elements() +
                                     std::size_t(token % 64) * shape.head_dim;
          for (int i = 0; i < shape.head_dim; ++i) ++counts[row[i] >> 7 & 255];
        }
      }
      const CalibratedCodebook& found = file->books[2 * layer + part];
      EXPECT_EQ(found.book.exponents, codebook_of(shape.type, counts).exponents);
      EXPECT_DOUBLE_EQ(found.coverage, coverage(shape.type, found.book, counts));
      EXPECT_GT(found.coverage, 0.9);
    }
  }
}

TEST(CalibrateCodebook, TextsLongerThanTheContextAreCutIntoSequences) {
  const auto model = load("qwen3-gqa-bf16");
  const auto count =
      static_cast<std::size_t>(std::min(model->context(), kCalibrationSequence)) + 70;
  std::uint64_t last = 0;
  const auto file = calibrate_codebooks(*model, tokens_of(*model, count, 1),
                                        [&](std::uint64_t done, std::uint64_t total) {
                                          EXPECT_GT(done, last);
                                          EXPECT_EQ(total, count);
                                          last = done;
                                        });
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(last, count);
  EXPECT_EQ(file->tokens, count);
  EXPECT_FALSE(calibrate_codebooks(*model, {}, {}).ok());
}

}  // namespace
}  // namespace kvlane
