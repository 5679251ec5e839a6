// Models in GGUF against what transformers computes with the checkpoints that they were made of.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "base/test_results.h"
#include "model/expected_fixture.h"
#include "model/forward.h"
#include "model/gguf_fixture.h"

namespace kvlane {
namespace {

using expected_fixture::Errors;
using expected_fixture::Expected;
using expected_fixture::kModels;

constexpr int kGgufRowsMax = 256;
constexpr double kGgufFactor = 1.25;  // as of the checkpoints themselves
// Weights in Q8_0, but for one product that has them in BF16.
constexpr double kRoundedGgufFactor = 2.5;

// The logits behind each of the last `positions` tokens, those before them at once.
void add_errors(Forward& forward, BlockPool& pool, std::span<const std::int32_t> tokens,
                int positions, const float* expected, std::size_t vocab, Errors& errors) {
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(static_cast<int>(tokens.size())).ok());
  const std::size_t head = tokens.size() - positions;
  if (head > 0) {
    const ForwardSpan span{&table, tokens.first(head), 0};
    ASSERT_TRUE(forward.run({&span, 1}, {}).ok());
  }
  for (int position = 0; position < positions; ++position) {
    const ForwardSpan span{&table, tokens.subspan(head + position, 1), 1};
    ASSERT_TRUE(forward.run({&span, 1}, {}).ok());
    errors.add(forward.logits(0), expected + position * vocab);
  }
}

TEST(GgufForward, LogitsEqualTransformersWithinTheErrorOfAPlainImplementation) {
  const struct {
    const char* gguf;
    const char* model;
    const char* plain;
    double factor = kGgufFactor;
  } cases[] = {{"llama", "llama-gqa-f16", "float32+bfloat16_kv"},
               {"llama31", "llama-gqa-bf16-llama3-sharded", "bfloat16"},
               {"mistral", "mistral-gqa-bf16-window", "bfloat16"},
               {"yarn", "llama-f32-yarn", "float32+bfloat16_kv"},
               {"phi3", "phi3-gqa-bf16-longrope", "bfloat16"},
               {"falcon", "falcon-gqa-bf16", "bfloat16"},
               {"qwen2", "qwen2-gqa-bf16", "bfloat16", kRoundedGgufFactor},
               {"falcon-mqa", "falcon-mqa-bf16", "bfloat16", kRoundedGgufFactor},
               {"split/model-00001-of-00003", "llama-mha-bf16-tied", "bfloat16"}};
  for (const auto& fixture : cases) {
    SCOPED_TRACE(fixture.gguf);
    const auto model = take(
        Model::load(gguf_fixture::kFiles / (std::string(fixture.gguf) + ".gguf"), ModelOptions()));
    const KvShape shape = model->config().kv_shape();
    BlockPool pool = take(BlockPool::create(shape, 8 * shape.block_bytes()));
    const auto forward = take(Forward::create(*model, kGgufRowsMax, 1));
    const Expected expected(kModels / fixture.model);
    Errors errors;
    for (std::size_t prompt = 0; prompt < expected.prompts().size(); ++prompt) {
      add_errors(*forward, pool, expected.prompts()[prompt], expected.positions(prompt),
                 expected.logits(prompt), static_cast<std::size_t>(model->config().vocab), errors);
    }
    expected.expect_at_most(errors, fixture.factor, fixture.plain);
  }
}

}  // namespace
}  // namespace kvlane
