// Models whose layers all have a sliding window: sequences of any length in the blocks of that
// window, with the answers of an engine that has memory enough.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_sanitizers.h"
#include "engine/engine_fixture.h"
#include "engine/state_fixture.h"
#include "model/forward.h"
#include "quant/kv_format.h"
#include "store/store.h"

namespace kvlane {
namespace {

// A context of 512 tokens and a window of 70.
const Model& windowed_model() { return fixture_model("mistral-gqa-bf16-window"); }
constexpr int kChunk = 16;
// 69 tokens before one of a chunk's 16, wherever blocks begin.
constexpr int kBlocks = 3;

std::size_t windowed_block_bytes() { return windowed_model().config().kv_shape().block_bytes(); }

EngineOptions with_blocks(int blocks) {
  return {.kv_bytes = blocks * windowed_block_bytes(), .chunk_tokens = kChunk};
}

std::unique_ptr<Engine> windowed_engine(EngineOptions options,
                                        const Model& model = windowed_model()) {
  return take(Engine::create(model, fixture_tokenizer(), nullptr, std::move(options)));
}

// The most likely tokens, by forward passes over a table that keeps everything.
std::vector<std::int32_t> computed_plainly(const GenerationRequest& request,
                                           const KvFormat* format) {
  const Model& model = windowed_model();
  const KvShape shape = model.config().kv_shape();
  auto rows = take(BlockPool::create(shape, 9 * shape.block_bytes()));
  const SlabSizes sizes = format ? format->slab_sizes() : SlabSizes(shape.layers, 64);
  auto sealed = take(BlockPool::create_sealed(shape, sizes, 9 * sizes.block_bytes()));
  const auto forward = take(Forward::create(model, 512, 1, format));
  BlockTable table = format ? BlockTable(sealed, rows, format->window()) : BlockTable(rows);
  EXPECT_TRUE(table.grow(512).ok());
  std::vector<std::int32_t> answer;
  std::span<const std::int32_t> next = request.prompt;
  while (static_cast<int>(answer.size()) < request.max_tokens) {
    const ForwardSpan span{&table, next, 1};
    EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
    answer.push_back(sample_token(forward->logits(0), {.temperature = 0}, {}, 0));
    next = {&answer.back(), 1};
  }
  return answer;
}

TEST(WindowedEngine, ASequenceOfAnyLengthTakesTheBlocksOfItsWindow) {
  const auto engine = windowed_engine(with_blocks(kBlocks));
  for (const auto& [prompt, answer] : {std::pair(450, 60), {65, 440}, {1, 511}, {200, 1}}) {
    const GenerationRequest request = make_request(prompt, answer, prompt);
    EXPECT_EQ(answer_of(*engine, request), computed_plainly(request, nullptr)) << prompt;
  }
  expect_all_blocks_free(*engine);
  EXPECT_EQ(engine->load().preemptions, 0);
  EXPECT_EQ(engine->context(), windowed_model().context());
  const Status refused =
      windowed_engine(with_blocks(kBlocks - 1))->validate(make_request(450, 60, 1));
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("need 3 KV blocks, the whole KV memory has 2"),
            std::string::npos)
      << refused.message();
}

TEST(WindowedEngine, SoItIsInEveryFormat) {
  const GenerationRequest request = make_request(300, 200, 4);
  for (const char* name : {"fp8_e4m3", "mxfp4", "int4", "kivi", "kivi:bits=4,sink=1,recent=1",
                           "hack", "hack:sink=1,recent=1", "hack:paper", "hack:paper,ktail=code"}) {
    EngineOptions options = with_blocks(16);
    options.kv_format = make_format(name, windowed_model());
    options.sequences_max = 2;
    const auto engine = windowed_engine(options);
    Answer other;
    ASSERT_TRUE(engine->submit(make_request(400, 90, 5), other.on_update()).ok());
    EXPECT_EQ(answer_of(*engine, request), computed_plainly(request, options.kv_format.get()))
        << name;
    other.wait();
    expect_all_blocks_free(*engine);
  }
}

TEST(WindowedEngine, WhereSomeLayersSeeAllNothingIsGivenBack) {
  const Model& model = fixture_model("qwen2-f32-window-above");
  const std::size_t bytes = model.config().kv_shape().block_bytes();
  const GenerationRequest request = make_request(300, 100, 1);
  EXPECT_FALSE(windowed_engine({.kv_bytes = 6 * bytes, .chunk_tokens = kChunk}, model)
                   ->validate(request)
                   .ok());
  const auto engine = windowed_engine({.kv_bytes = 7 * bytes, .chunk_tokens = kChunk}, model);
  EXPECT_EQ(answer_of(*engine, request), alone(model, request));
}

// Each in what the others leave, some stopped and computed again.
TEST(WindowedEngine, ManyInLittleMemoryAnswerAsEachAlone) {
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < 8; ++i) {
    requests.push_back(make_mixed_request(20 + 50 * static_cast<int>(i), 90, i));
    expected.push_back(alone(windowed_model(), requests.back()));
  }
  for (const int blocks : {kBlocks, 2 * kBlocks + 1}) {
    for (const int host_blocks : every_other_if(kSanitized, std::vector{0, 5, 60})) {
      EngineOptions options = with_blocks(blocks);
      options.host_bytes = host_blocks * windowed_block_bytes();
      options.sequences_max = 5;
      const auto engine = windowed_engine(options);
      for (int round = 0; round < 2; ++round) {
        std::vector<Answer> answers(requests.size());
        for (std::size_t i = 0; i < requests.size(); ++i) {
          requests[i].priority = static_cast<int>(i % 3);
          ASSERT_TRUE(engine->submit(requests[i], answers[i].on_update()).ok());
        }
        for (std::size_t i = 0; i < requests.size(); ++i) {
          EXPECT_TRUE(answers[i].wait().error.ok()) << answers[i].wait().error.message();
          EXPECT_EQ(answers[i].tokens(), expected[i])
              << "request " << i << " blocks " << blocks << " host " << host_blocks;
        }
      }
      expect_all_blocks_free(*engine);
    }
  }
}

// The most important one goes first; the other stops, and goes on with what it still sees.
TEST(WindowedEngine, WhoHadToStopGoesOn) {
  EngineOptions options = with_blocks(kBlocks + 1);
  options.host_bytes = 20 * windowed_block_bytes();
  const auto engine = windowed_engine(options);
  GenerationRequest low = make_request(250, 200, 1);
  low.priority = 5;
  const GenerationRequest urgent = make_request(300, 50, 2);
  Answer stopped, stopping;
  int tokens = 0;
  const auto on_update = [&, tell = stopped.on_update()](const Update& update) {
    tell(update);
    if (++tokens == 100) {
      EXPECT_TRUE(engine->submit(urgent, stopping.on_update()).ok());
    }
  };
  ASSERT_TRUE(engine->submit(low, on_update).ok());
  EXPECT_TRUE(stopped.wait().error.ok());
  EXPECT_TRUE(stopping.wait().error.ok());
  EXPECT_EQ(stopping.tokens(), alone(windowed_model(), urgent));
  EXPECT_EQ(stopped.tokens(), alone(windowed_model(), low));
  expect_all_blocks_free(*engine);
  EXPECT_GE(engine->load().preemptions, 1);
  EXPECT_LT(engine->load().recomputed_tokens, kBlockTokens) << "its window was in the arena";
}

TEST(WindowedEngine, SeveralAnswersShareWhatTheySee) {
  expect_answers_in_any_room(
      [](int blocks) {
        EngineOptions options = with_blocks(blocks);
        return windowed_engine(options);
      },
      40, kBlocks);
  GenerationRequest request = make_request(200, 250, 5, 1.0F);
  request.n = 5;
  const auto wide = windowed_engine(with_blocks(60));
  const auto narrow = windowed_engine(with_blocks(kBlocks + 3));
  EXPECT_EQ(answers_of(*narrow, request), answers_of(*wide, request));
  expect_all_blocks_free(*narrow);
}

TEST(WindowedEngine, WhatWasGivenBackIsFoundUntilItIsEvicted) {
  const auto cached = [](Engine& engine, const GenerationRequest& request) {
    Finish finish;
    EXPECT_EQ(answer_of(engine, request, &finish), alone(windowed_model(), request));
    return finish.cached_tokens;
  };
  const GenerationRequest all = make_request(450, 10, 1);
  const GenerationRequest beginning = make_request(200, 10, 1);  // the same tokens, fewer
  {
    const auto engine = windowed_engine(with_blocks(20));
    EXPECT_EQ(cached(*engine, all), 0);
    EXPECT_EQ(cached(*engine, beginning), 192);
    EXPECT_EQ(cached(*engine, all), 448);
  }
  // Of the sequence there are the last blocks: enough for who goes on behind them.
  const auto engine = windowed_engine(with_blocks(kBlocks));
  EXPECT_EQ(cached(*engine, all), 0);
  EXPECT_EQ(cached(*engine, all), 448);
  EXPECT_EQ(cached(*engine, beginning), 0);
  expect_all_blocks_free(*engine);
}

TEST(WindowedEngine, OfPromptsThatBeginAlikeAndComeAtOnceOneIsComputed) {
  for (const int blocks : {kBlocks, 2 * kBlocks, 40}) {
    const auto engine = windowed_engine(with_blocks(blocks));
    std::vector<GenerationRequest> requests;
    std::vector<Answer> answers(6);
    for (int i = 0; i < 6; ++i) {
      requests.push_back(make_request(400, 5, 1));
      requests.back().prompt[390] = 10 + i;
      requests.back().prompt.resize(391 + i);
      ASSERT_TRUE(engine->submit(requests.back(), answers[i].on_update()).ok());
    }
    for (int i = 0; i < 6; ++i) {
      EXPECT_TRUE(answers[i].wait().error.ok());
      EXPECT_EQ(answers[i].tokens(), alone(windowed_model(), requests[i])) << blocks;
    }
    expect_all_blocks_free(*engine);
    if (blocks == 40) {
      EXPECT_EQ(engine->load().prefix_hit_tokens, 5 * 384);
    }
  }
}

TEST(WindowedEngine, RequestsThatEndEarlyLeaveNothing) {
  const auto engine = windowed_engine(with_blocks(2 * kBlocks));
  for (int i = 0; i < 10; ++i) {
    Answer answer;
    const RequestId id = take(engine->submit(make_request(300, 200, i), answer.on_update()));
    answer.wait_for_tokens(10 * i);
    engine->abort(id);
    answer.wait();
  }
  expect_all_blocks_free(*engine);
}

// Whole prompts travel, and go when they have arrived.
TEST(WindowedEngine, WorkersGiveTheSingleProcessesAnswer) {
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker prefill(*network, windowed_model(), with_blocks(14));
  Worker decode(*network, windowed_model(), with_blocks(7));
  const GenerationRequest too_long = make_request(450, 5, 1);
  EXPECT_FALSE(decode.engine->validate(too_long).ok()) << "8 blocks";
  for (const int prompt : {60, 200, 448}) {
    for (const bool parks : {false, true}) {
      const GenerationRequest request = make_mixed_request(prompt, 60, prompt);
      const TransferId transfer = random_transfer_id();
      Answer answer;
      Prefilled prefilled;
      if (parks) {
        take(prefill.engine->prefill_and_park(request, transfer, prefilled.on_prefilled()));
        prefilled.wait();
        take(decode.engine->fetch_and_decode(request, prefill.endpoint->address(), transfer,
                                             answer.on_update()));
      } else {
        const RequestId id = take(decode.engine->reserve(request, transfer));
        ASSERT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
        take(prefill.engine->prefill_and_push(request, decode.endpoint->address(), transfer,
                                              prefilled.on_prefilled()));
        prefilled.wait();
      }
      EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
      EXPECT_EQ(answer.tokens(), alone(windowed_model(), request)) << prompt << parks;
    }
  }
  prefill.expect_clean();
  decode.expect_clean();
}

// A conversation that is longer than the memory goes on after a restart: with slabs of what it
// still sees, or with all, where lower layers have to be computed from tokens.
TEST(WindowedEngine, WhatIsInTheStateStoreComesBack) {
  const int layers = windowed_model().config().layers;
  for (const char* form : {"kv", "hidden", "hidden=1"}) {
    for (const int blocks : {kBlocks, 2 * kBlocks, 40}) {
      SCOPED_TRACE(std::string(form) + " " + std::to_string(blocks));
      const TemporaryDirectory directory;
      const auto make = [&] {
        EngineOptions options = with_blocks(blocks);
        options.state.store = open_store(directory.path());
        options.state.forms = take(make_state_forms(form, layers, nullptr, 0));
        options.state.saves_all = true;
        return windowed_engine(options);
      };
      const GenerationRequest first = make_request(300, 80, 1);
      GenerationRequest second = make_request(30, 40, 2);
      {
        const auto engine = make();
        const std::vector<std::int32_t> answer = answer_of(*engine, first);
        EXPECT_EQ(answer, alone(windowed_model(), first));
        second.prompt.insert(second.prompt.begin(), answer.begin(), answer.end());
        second.prompt.insert(second.prompt.begin(), first.prompt.begin(), first.prompt.end());
        expect_all_blocks_free(*engine);
        EXPECT_EQ(engine->load().save_failures, 0);
        EXPECT_EQ(engine->load().hidden_tokens_lost, 0);
      }
      const auto engine = make();
      Finish finish;
      EXPECT_EQ(answer_of(*engine, second, &finish), alone(windowed_model(), second));
      EXPECT_EQ(finish.cached_tokens, 379 / kBlockTokens * kBlockTokens);
      expect_all_blocks_free(*engine);
      const EngineLoad load = engine->load();
      EXPECT_EQ(load.restores_failed, 0);
      if (std::string(form) == "kv") {
        EXPECT_EQ(load.restores, 1);
        EXPECT_LT(load.restore_bytes, 3 * static_cast<std::int64_t>(windowed_block_bytes()))
            << "the two blocks that the next token sees";
      }
    }
  }
}

// Before it has a place, and no more of it than the next token sees.
TEST(WindowedEngine, WhatWaitingOnesSeeIsReadAhead) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(420, 5, 4);
  EngineOptions options = with_blocks(40);
  options.state.saves_all = true;
  options.state.store = open_store(directory.path());
  (void)answer_of(*windowed_engine(options), request);
  options.state.store.reset();
  const auto store = open_store(directory.path(), {}, std::uint64_t{1} << 26);
  options.state.store = store;
  options.sequences_max = 1;
  const auto engine = windowed_engine(options);
  Answer long_one, waiting;
  ASSERT_TRUE(engine->submit(make_request(20, 300, 5), long_one.on_update()).ok());
  long_one.wait_for_tokens(1);
  ASSERT_TRUE(engine->submit(request, waiting.on_update()).ok());
  long_one.wait();
  waiting.wait();
  EXPECT_EQ(waiting.tokens(), alone(windowed_model(), request));
  EXPECT_EQ(waiting.finish().cached_tokens, 384);
  EXPECT_EQ(store->figures().prefetched, 2U);
  EXPECT_EQ(store->figures().memory_reads, 2U);
}

TEST(WindowedEngine, SeveralComeBackAtOnce) {
  const TemporaryDirectory directory;
  EngineOptions options = with_blocks(4 * kBlocks);
  options.state.store = open_store(directory.path());
  options.state.saves_all = true;
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(make_request(250 + 30 * i, 40, i % 3));  // some begin as another one
    expected.push_back(alone(windowed_model(), requests.back()));
  }
  for (int round = 0; round < 3; ++round) {
    const auto engine = windowed_engine(options);
    std::vector<Answer> answers(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(engine->submit(requests[i], answers[i].on_update()).ok());
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(answers[i].wait().error.ok()) << answers[i].wait().error.message();
      EXPECT_EQ(answers[i].tokens(), expected[i]) << "request " << i << " round " << round;
    }
    expect_all_blocks_free(*engine);
    if (round > 0) {
      EXPECT_GT(engine->load().store_hit_tokens, 0);
    }
    EXPECT_EQ(engine->load().restores_failed, 0);
  }
}

// A saver that is behind mostly: every block is stored or counted, those too that had to go.
TEST(WindowedEngine, BlocksThatGoUnsavedAreCounted) {
  const TemporaryDirectory directory;
  EngineOptions options = with_blocks(2 * kBlocks);
  options.state.store = open_store(directory.path());
  options.state.saving_bytes = 1;  // one block at a time
  const auto store = options.state.store;
  std::int64_t failures = 0;
  {
    const auto engine = windowed_engine(options);
    const GenerationRequest request = make_request(450, 12, 3);
    EXPECT_EQ(answer_of(*engine, request), alone(windowed_model(), request));
    expect_all_blocks_free(*engine);
    failures = engine->load().save_failures;
  }
  store->flush();
  EXPECT_EQ(static_cast<std::int64_t>(store->all().size()) + failures, 461 / kBlockTokens);
}

}  // namespace
}  // namespace kvlane
