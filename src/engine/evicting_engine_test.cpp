// Engines that keep some tokens of each prompt only: the same answers as plain passes over such a
// cache, whoever else is there and whoever had to stop; memory; what is refused.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/sparse_cache.h"
#include "engine/engine_fixture.h"
#include "model/forward.h"

namespace kvlane {
namespace {

EngineOptions evicting_options(const char* rule, int blocks) {
  return {.kv_bytes = blocks * fixture_model().config().kv_shape().block_bytes(),
          .eviction = take(make_eviction_rule(rule))};
}

// What one prompt and then one token at a time give.
std::vector<std::int32_t> plain_evicting_answer(const char* rule,
                                                const GenerationRequest& request) {
  const Model& model = fixture_model();
  const KvShape shape = model.config().kv_shape();
  auto pool = take(BlockPool::create(shape, 20 * shape.block_bytes()));
  const auto layout = take(SparseLayout::create(shape, nullptr));
  BlockTable table(pool);
  SparseCache sparse(layout, take(make_eviction_rule(rule)));
  const auto forward = take(Forward::create(model, 512, 1));
  EXPECT_TRUE(table.grow(static_cast<int>(request.prompt.size())).ok());
  std::vector<std::int32_t> answer;
  std::vector<std::int32_t> next = request.prompt;
  while (answer.size() < std::size_t(request.max_tokens)) {
    const ForwardSpan span{&table, next, 1, false, &sparse};
    EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
    if (!sparse.evicted()) {
      EXPECT_TRUE(sparse.evict(table).ok());
    }
    const auto logits = forward->logits(0);
    answer.push_back(
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    next = {answer.back()};
  }
  return answer;
}

Answer::One ask(Engine& engine, const GenerationRequest& request) {
  return answers_of(engine, request)[0];
}

TEST(EvictingEngine, GreedyAnswersEqualPlainPasses) {
  const GenerationRequest request = make_request(300, 60, 3);
  const auto whole = make_engine({.kv_bytes = std::size_t{1} << 24});
  for (const char* rule : {"h2o:keep=0.2", "keyformer:keep=0.3"}) {
    EngineOptions options = evicting_options(rule, 20);
    options.chunk_tokens = 70;
    const auto engine = make_engine(options);
    const std::vector<std::int32_t> expected = plain_evicting_answer(rule, request);
    for (int round = 0; round < 2; ++round) EXPECT_EQ(ask(*engine, request).tokens, expected);
    EXPECT_EQ(engine->load().prefix_hit_tokens, 0) << "nobody shares";
    EXPECT_NE(ask(*whole, request).tokens, expected) << rule;
  }
}

TEST(EvictingEngine, AnswersHoldTheirSlotsOnly) {
  const auto engine = make_engine(evicting_options("h2o:keep=0.2", 9));
  // Six blocks of prompt, of which 76 tokens stay, and one slot: two blocks.
  Answer answer;
  ASSERT_TRUE(engine->submit(make_request(380, 130, 1), answer.on_update()).ok());
  answer.wait_for_tokens(20);
  const EngineLoad load = engine->load();
  if (load.running == 1) {
    EXPECT_EQ(load.blocks_total - load.blocks_free, 2);
  }
  ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  engine->wait_idle();
  EXPECT_EQ(engine->load().blocks_free, 9);
  // Prompt and slots must fit; the answer takes no more.
  EXPECT_TRUE(engine->validate(make_request(440, 60, 1)).ok()) << "seven and two";
  EXPECT_FALSE(engine->validate(make_request(460, 10, 1)).ok()) << "eight and two";
}

TEST(EvictingEngine, CompanyAndShortMemoryChangeNoAnswer) {
  const char* const rule = "keyformer:keep=0.4,recent=0.5";
  const auto alone = make_engine(evicting_options(rule, 40));
  const auto crowded = make_engine(evicting_options(rule, 8));
  std::vector<Answer> answers(10);
  std::vector<GenerationRequest> requests;
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    requests.push_back(make_mixed_request(40 + 31 * static_cast<int>(i), 50, i));
    // Later ones are more urgent: those that run have to stop.
    requests.back().priority = -static_cast<int>(i);
    ASSERT_TRUE(crowded->submit(requests[i], answers[i].on_update()).ok());
    if (i % 3 == 0) answers[i].wait_for_tokens(5);
  }
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].wait().error.ok()) << answers[i].wait().error.message();
    EXPECT_EQ(answers[i].all()[0], ask(*alone, requests[i])) << i;
  }
  crowded->wait_idle();
  EXPECT_GT(crowded->load().preemptions, 0);
  EXPECT_EQ(crowded->load().blocks_free, 8);
}

TEST(EvictingEngine, SeveralAnswersToOnePromptHaveSlotsOfTheirOwn) {
  // Few: room for one beside the prompt.
  expect_answers_in_any_room(
      [](int blocks) { return make_engine(evicting_options("h2o:keep=0.4", blocks)); }, 40, 6);
}

TEST(EvictingEngine, RefusesWhatCannotBe) {
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  EndpointOptions door;
  door.model = fixture_model().identity();
  door.codecs = codec_names();
  const auto endpoint = take(Endpoint::start(*network, door));
  EXPECT_EQ(Engine::create(fixture_model(), fixture_tokenizer(), endpoint.get(),
                           evicting_options("h2o", 10))
                .status()
                .message(),
            "tokens are evicted where one process computes prompt and answer on the CPU, not "
            "between workers");
  EngineOptions coded = evicting_options("h2o", 40);
  coded.kv_format = take(make_kv_format("int8", {.shape = fixture_model().config().kv_shape()}));
  EXPECT_EQ(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, coded).status().message(),
            "tokens can be evicted from caches in bf16 and zack, not in 'int8:sym=1', whose slabs "
            "have no room for single tokens");
}

}  // namespace
}  // namespace kvlane
