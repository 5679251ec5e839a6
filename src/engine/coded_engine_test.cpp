// Engines whose KV cache is in a coded format: the same answers as plain passes over such a cache,
// and what is refused. Under load: company_test.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine_fixture.h"
#include "model/forward.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

EngineOptions coded_options(const char* format) {
  return {.kv_bytes = std::size_t{1} << 26, .kv_format = make_format(format)};
}

// What passes over a coded cache give, one token at a time.
std::vector<std::int32_t> plain_coded_answer(const KvFormat& format,
                                             const GenerationRequest& request) {
  const Model& model = fixture_model();
  const KvShape shape = model.config().kv_shape();
  const int tokens = static_cast<int>(request.prompt.size()) + request.max_tokens;
  const std::size_t blocks = blocks_for(tokens);
  auto rows = take(BlockPool::create(shape, blocks * shape.block_bytes()));
  auto sealed = take(BlockPool::create_sealed(shape, format.slab_sizes(),
                                              blocks * format.slab_bytes() * shape.layers));
  BlockTable table(sealed, rows, format.window());
  EXPECT_TRUE(table.grow(tokens).ok());
  const auto forward = take(Forward::create(model, 1, 1, &format));
  std::vector<std::int32_t> answer;
  std::vector<std::int32_t> all = request.prompt;
  for (std::size_t i = 0; answer.size() < std::size_t(request.max_tokens); ++i) {
    const ForwardSpan span{&table, {&all[i], 1}, 1};
    EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
    if (i + 1 < all.size()) continue;
    const auto logits = forward->logits(0);
    answer.push_back(
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    all.push_back(answer.back());
  }
  return answer;
}

TEST(CodedEngine, GreedyAnswersEqualPlainPassesOverACodedCache) {
  const GenerationRequest request = make_request(200, 70, 3);
  for (const char* text :
       {"int8", "kivi:bits=2,group=32", "kivi:bits=2,group=32,sink=1,recent=1", "hack",
        "hack:k=4,v=4,recent=1", "hack:compute=bf16", "hack:paper,compute=dequantise",
        "hack:p=32,compute=complete", "hack:paper,compute=complete,sums=computed"}) {
    const auto engine =
        take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, coded_options(text)));
    const std::vector<std::int32_t> expected = plain_coded_answer(*make_format(text), request);
    // The second time most of the prompt comes from the prefix cache, where blocks are shared.
    for (int round = 0; round < 2; ++round) {
      Answer answer;
      ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
      ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
      EXPECT_EQ(answer.tokens(), expected) << text;
    }
    const auto format = make_format(text);
    const bool shares = format->window() == KvWindow{} && !format->own_block().sees_ahead;
    EXPECT_EQ(engine->load().prefix_hit_tokens, shares ? 192 : 0) << text;
  }
}

TEST(CodedEngine, HoldsMoreTokensInTheSameMemory) {
  const auto rows = take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr,
                                        {.kv_bytes = std::size_t{1} << 26, .sequences_max = 4}));
  EngineOptions options = coded_options("kivi:bits=2,group=64");
  options.sequences_max = 4;
  const auto coded = take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options));
  EXPECT_GT(coded->load().blocks_total, 4 * rows->load().blocks_total);
}

// Sealing is part of a prompt's time, opening part of an answer's; attention on codes opens none.
TEST(CodedEngine, TellsWhatSealingAndOpeningTook) {
  for (const char* text : {"kivi:bits=2,group=32", "hack", "hack:compute=dequantise"}) {
    const auto engine =
        take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, coded_options(text)));
    Answer answer;
    ASSERT_TRUE(engine->submit(make_request(200, 20, 3), answer.on_update()).ok());
    ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    const TimeAccount account = answer.wait().account;
    EXPECT_GT(account.prefill_quantise, 0) << text;
    EXPECT_LT(account.prefill_quantise, account.prefill) << text;
    EXPECT_GT(account.decode_attention, 0) << text;
    EXPECT_LT(account.decode_attention + account.decode_dequantise, account.decode) << text;
    const bool opens = std::string_view(text).starts_with("kivi");
    EXPECT_EQ(account.prefill_dequantise > 0, opens) << text;
    EXPECT_EQ(account.decode_dequantise > 0, opens) << text;
  }
}

TEST(CodedEngine, ManyAnswersAndPromptsAtOnceAreThoseOfOneAtATime) {
  const EngineOptions options = coded_options("kivi:bits=2,group=32");
  const auto engine = take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options));
  std::vector<Answer> answers(12);
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(engine
                    ->submit(make_mixed_request(30 + 17 * static_cast<int>(i), 40, i),
                             answers[i].on_update())
                    .ok());
  }
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].wait().error.ok()) << answers[i].wait().error.message();
    const auto alone_engine =
        take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options));
    Answer alone;
    ASSERT_TRUE(
        alone_engine
            ->submit(make_mixed_request(30 + 17 * static_cast<int>(i), 40, i), alone.on_update())
            .ok());
    ASSERT_TRUE(alone.wait().error.ok());
    EXPECT_EQ(answers[i].tokens(), alone.tokens()) << i;
  }
}

TEST(CodedEngine, SaysHowMuchMemoryItsRowsNeed) {
  EngineOptions options = coded_options("int8");
  const std::size_t block = fixture_model().config().kv_shape().block_bytes();
  options.chunk_tokens = 128;
  options.kv_bytes = 6 * block - 1;
  const auto engine = Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message(),
            "KV format 'int8:sym=1' needs " + std::to_string(6 * block) +
                " bytes of KV memory at least, half of it for rows of 16 bits; there are " +
                std::to_string(6 * block - 1));
}

}  // namespace
}  // namespace kvlane
