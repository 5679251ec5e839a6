// Engines with a state store: sequences go on where they were, after a restart, under pressure and
// on damaged disks, with the answers that one engine gives which never forgot anything.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/temporary_directory.h"
#include "engine/engine_fixture.h"
#include "engine/state_fixture.h"
#include "quant/kv_format.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

EngineOptions state_options(std::shared_ptr<Store> store, const std::string& format = "bf16",
                            const Model& model = fixture_model()) {
  EngineOptions options;
  options.kv_bytes = std::size_t{1} << 24;
  options.kv_format = make_format(format, model);
  options.state.store = std::move(store);
  return options;
}

// How the first turn is saved.
struct Saving {
  std::string codec = "none";
  std::string form = "kv";
  std::uint32_t others = 0;  // beside it, in the same passes
};

// One turn, and the next one after a restart.
void expect_goes_on(const std::string& format, const Saving& saving,
                    const Model& model = fixture_model()) {
  SCOPED_TRACE(format + " " + saving.codec + " " + saving.form);
  const TemporaryDirectory directory;
  const GenerationRequest first = make_request(300, 40, 1);
  const auto whole = make_engine(state_options(nullptr, format, model), model);
  const std::vector<std::int32_t> first_answer = answer_of(*whole, first);
  const GenerationRequest second = next_turn(first, first_answer, make_request(30, 12, 2));
  const std::vector<std::int32_t> second_answer = answer_of(*whole, second);
  const auto make = [&](const std::string& codec) {
    EngineOptions options = state_options(open_store(directory.path()), format, model);
    options.state.codec = codec;
    const int layers = model.config().layers;
    options.state.forms = take(make_state_forms(saving.form, layers, nullptr, 0));
    return make_engine(options, model);
  };
  {
    const auto engine = make(saving.codec);
    std::vector<Answer> others(saving.others);
    for (std::uint32_t i = 0; i < saving.others; ++i) {
      ASSERT_TRUE(engine->submit(make_request(200, 30, 9 + i), others[i].on_update()).ok());
    }
    EXPECT_EQ(answer_of(*engine, first), first_answer);
    for (Answer& other : others) other.wait();
    EXPECT_EQ(engine->load().hidden_tokens_lost, 0);
  }
  const auto engine = make("none");
  Finish finish;
  EXPECT_EQ(answer_of(*engine, second, &finish), second_answer);
  // All complete blocks of the first turn, its answer included.
  EXPECT_EQ(finish.cached_tokens, 339 / kBlockTokens * kBlockTokens);
  EXPECT_GT(finish.account.restore, 0);
  engine->wait_idle();
  const EngineLoad load = engine->load();
  EXPECT_EQ(load.store_hit_tokens, finish.cached_tokens);
  EXPECT_EQ(load.restores, 1);
  EXPECT_EQ(load.restores_failed, 0);
  EXPECT_GT(load.restore_bytes, 0);
  EXPECT_EQ(load.save_failures, 0);
}

TEST(StateEngine, AConversationGoesOnAfterARestart) {
  for (const char* format : {"bf16", "int4", "hack"}) {
    for (const char* codec : {"none", "splitzip"}) expect_goes_on(format, {.codec = codec});
  }
}

// The same from hidden states, which are only there while they are computed, and from mixtures.
TEST(StateEngine, AConversationGoesOnFromHiddenStates) {
  for (const char* format : {"bf16", "int4"}) {
    for (const char* form : {"hidden", "hidden=1", "hidden=2"}) {
      expect_goes_on(format, {.form = form, .others = 3});
    }
  }
}

// Biases, norms of heads, matrices in one, groups of Q, K and V, learned positions; hidden states
// in F32 where weights are not in BF16.
TEST(StateEngine, AConversationOfEveryFamilyGoesOn) {
  for (const char* const name :
       {"llama-bf16-biases-linear", "llama-29-bf16", "llama-gqa-f16", "qwen2-grouped-bf16",
        "qwen3-gqa-bf16", "mistral-gqa-bf16", "phi3-gqa-bf16-longrope", "falcon-gqa-bf16",
        "falcon-mha-f32-sequential", "opt-mha-bf16", "opt-mha-f32"}) {
    SCOPED_TRACE(name);
    for (const char* const form : {"kv", "hidden"}) {
      expect_goes_on("bf16", {.form = form}, fixture_model(name));
    }
  }
}

TEST(StateEngine, EightBitsHaveNamesOfTheirOwn) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(300, 5, 1);
  const auto cached_with = [&](const char* form) {
    EngineOptions options = state_options(open_store(directory.path()));
    options.state.forms = take(make_state_forms(form, 2, nullptr, 0));
    Finish finish;
    (void)answer_of(*make_engine(options), request, &finish);
    return finish.cached_tokens;
  };
  EXPECT_EQ(cached_with("hidden:int8"), 0);
  EXPECT_EQ(cached_with("hidden:int8"), 256);
  EXPECT_EQ(cached_with("kv"), 0);
  EXPECT_EQ(cached_with("hidden"), 256) << "what is there is read, whatever is saved";
}

// Slabs of the last layer are there when those of all layers are wanted, in one extent by itself.
TEST(StateEngine, AnotherFormSavesWhatIsNotThere) {
  const TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  const GenerationRequest request = make_request(300, 5, 1);
  for (const int layers : {1, 2}) {
    EngineOptions options = state_options(store);
    options.state.forms = take(make_state_forms(layers == 1 ? "hidden=1" : "kv", 2, nullptr, 0));
    const auto engine = make_engine(options);
    EXPECT_EQ(answer_of(*engine, request), alone(fixture_model(), request));
    engine->wait_idle();
    engine->flush_state();
    EXPECT_EQ(engine->load().save_failures, 0);
    int slabs = 0;
    for (const PinnedExtent& extent : store->all()) {
      if (extent.head().key.kind == ExtentKind::kKv) slabs += extent.head().layers();
    }
    EXPECT_EQ(slabs, layers * (304 / kBlockTokens));
  }
}

// Memory for one long sequence: every other one has to leave.
TEST(StateEngine, WhatHadToLeaveMemoryIsReadAndNotComputed) {
  const TemporaryDirectory directory;
  EngineOptions options = state_options(open_store(directory.path()));
  options.kv_bytes = 8 * fixture_model().config().kv_shape().block_bytes();
  const auto store = options.state.store;
  const auto engine = make_engine(options);
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> answers;
  for (std::uint32_t i = 0; i < 4; ++i) {
    requests.push_back(make_request(400, 10, 20 + i));
    answers.push_back(answer_of(*engine, requests.back()));
    EXPECT_EQ(answers.back(), alone(fixture_model(), requests.back()));
  }
  engine->wait_idle();
  store->flush();
  for (std::uint32_t i = 0; i < 4; ++i) {
    Finish finish;
    EXPECT_EQ(answer_of(*engine, requests[i], &finish), answers[i]);
    EXPECT_EQ(finish.cached_tokens, 384);
  }
  EXPECT_GE(engine->load().store_hit_tokens, 3 * 384);
}

// A saver that is behind mostly: every block is stored or counted.
TEST(StateEngine, BlocksThatAreNotSavedAreCounted) {
  const TemporaryDirectory directory;
  EngineOptions options = state_options(open_store(directory.path()));
  options.state.saving_bytes = 1;  // one block at a time
  const auto store = options.state.store;
  const GenerationRequest request = make_request(500, 2, 3);
  std::int64_t failures = 0;
  {
    const auto engine = make_engine(options);
    answer_of(*engine, request);
    engine->wait_idle();
    failures = engine->load().save_failures;
  }
  store->flush();
  EXPECT_EQ(static_cast<std::int64_t>(store->all().size()) + failures, 501 / kBlockTokens);
}

// The same for who has time, in a pool that is full of what is not saved.
TEST(StateEngine, NothingIsLostWhereComputingWaits) {
  const int layers = fixture_model().config().layers;
  for (const char* form : {"kv", "hidden", "hidden=2"}) {
    SCOPED_TRACE(form);
    const TemporaryDirectory directory;
    EngineOptions options = state_options(open_store(directory.path()));
    options.kv_bytes = 12 * fixture_model().config().kv_shape().block_bytes();
    options.state.saving_bytes = 1;
    options.state.saves_all = true;
    options.state.forms = take(make_state_forms(form, layers, nullptr, 0));
    const auto engine = make_engine(options);
    std::vector<GenerationRequest> requests;
    std::vector<Answer> answers(6);
    for (Answer& answer : answers) {
      requests.push_back(make_request(385, 1, static_cast<std::uint32_t>(requests.size())));
      EXPECT_EQ(take(engine->stored_tokens(requests.back().prompt, "")), 0);
      ASSERT_TRUE(engine->submit(requests.back(), answer.on_update()).ok());
    }
    for (Answer& answer : answers) EXPECT_TRUE(answer.wait().error.ok());
    engine->flush_state();
    for (const GenerationRequest& request : requests) {
      EXPECT_EQ(take(engine->stored_tokens(request.prompt, "")), 384);
      EXPECT_EQ(take(engine->stored_tokens(request.prompt, "of others")), 0);
    }
    engine->wait_idle();
    EXPECT_EQ(engine->load().save_failures + engine->load().hidden_tokens_lost, 0);
  }
}

TEST(StateEngine, TwoThatWantTheSameReadItOnce) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(420, 5, 3);
  const std::vector<std::int32_t> expected = alone(fixture_model(), request);
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), request);
  const auto engine = make_engine(state_options(
      open_store(directory.path(), {.read_bytes_per_second = 20e6, .latency = Seconds(0.01)})));
  Answer one, two;
  ASSERT_TRUE(engine->submit(request, one.on_update()).ok());
  ASSERT_TRUE(engine->submit(request, two.on_update()).ok());
  EXPECT_EQ(one.wait().cached_tokens, 384);
  EXPECT_EQ(two.wait().cached_tokens, 384);
  EXPECT_EQ(one.tokens(), expected);
  EXPECT_EQ(two.tokens(), expected);
  engine->wait_idle();
  EXPECT_EQ(engine->load().store_hit_tokens, 384);
  EXPECT_EQ(engine->load().restores, 1);
}

TEST(StateEngine, OthersAnswerWhileASequenceComesBack) {
  const TemporaryDirectory directory;
  const GenerationRequest slow = make_request(420, 5, 4);
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), slow);
  // Reading takes a second or more; all of the other answer is there long before.
  const auto engine = make_engine(state_options(
      open_store(directory.path(), {.read_bytes_per_second = 1e9, .latency = Seconds(1)})));
  Answer restored, quick;
  ASSERT_TRUE(engine->submit(slow, restored.on_update()).ok());
  ASSERT_TRUE(engine->submit(make_request(20, 30, 5), quick.on_update()).ok());
  quick.wait();
  EXPECT_TRUE(restored.tokens().empty());
  restored.wait();
  EXPECT_EQ(restored.tokens(), alone(fixture_model(), slow));
  EXPECT_GE(restored.finish().account.restore, 0.9);
}

// A decode worker would keep it, and save it, as exact.
TEST(StateEngine, WhatMayHaveComeBackFrom8BitsIsNotPushedAsExact) {
  const TemporaryDirectory directory;
  const int layers = fixture_model().config().layers;
  EngineOptions options = state_options(open_store(directory.path()));
  options.state.forms = take(make_state_forms("hidden:int8", layers, nullptr, 0));
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker prefill(*network, fixture_model(), options);
  const auto push_to = [&](Worker& decode) {
    Push push(prefill, decode, make_request(130, 4, 1));
    const Status sent = push.prefilled.wait().finish.error;
    if (!sent.ok()) decode.engine->abort(push.decode_id);
    EXPECT_EQ(push.answer.wait().error.ok(), sent.ok());
    return sent;
  };
  Worker exact(*network, fixture_model());
  const Status refused = push_to(exact);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("in format bf16+hidden:int8"), std::string::npos)
      << refused.message();
  const TemporaryDirectory others;
  options.state.store = open_store(others.path());
  Worker alike(*network, fixture_model(), options);
  EXPECT_TRUE(push_to(alike).ok());
}

TEST(StateEngine, WhoAnswersTellsWhatBringingThePromptBackTook) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(300, 5, 4);
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), request);
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker prefill(*network, fixture_model(), state_options(open_store(directory.path())));
  Worker decode(*network, fixture_model());
  Push push(prefill, decode, request);
  EXPECT_EQ(push.answer.wait().error.message(), "");
  EXPECT_EQ(prefill.engine->load().restores, 1);
  EXPECT_GT(push.answer.finish().account.restore, 0);
}

// What other tables have sealed is no state of these: it is neither found nor in the way.
TEST(StateEngine, OtherTablesMakeOtherBlocks) {
  const TemporaryDirectory directory;
  const Model& model = fixture_model();
  const KvShape shape = model.config().kv_shape();
  KvTables first, second;
  tables_fixture::add_kvquant_tables(shape, first);
  tables_fixture::add_kvquant_tables(shape, second);
  for (auto& [name, values] : second.values) {
    if (!name.ends_with("high")) continue;
    for (float& value : values) value += 1;
  }
  const GenerationRequest request = make_request(300, 5, 4);
  const auto cached = [&](const KvTables& tables) {
    EngineOptions options = state_options(open_store(directory.path()));
    options.kv_format = take(make_kv_format(
        "kvquant:bits=4",
        {.shape = shape, .rope = &model.rope(), .tables = &tables, .isa = model.isa()}));
    options.state.saves_all = true;
    Finish finish;
    (void)answer_of(*make_engine(options), request, &finish);
    return finish.cached_tokens;
  };
  EXPECT_EQ(cached(first), 0);
  EXPECT_EQ(cached(second), 0);
  EXPECT_EQ(cached(second), 256);
  EXPECT_EQ(cached(first), 256);
}

TEST(StateEngine, WhoWaitsForAPlaceIsReadAhead) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(420, 5, 4);
  const std::vector<std::int32_t> expected = alone(fixture_model(), request);
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), request);
  const auto store = open_store(directory.path(), {}, std::uint64_t{1} << 26);
  EngineOptions options = state_options(store);
  options.sequences_max = 1;
  const auto engine = make_engine(options);
  Answer long_one, waiting;
  ASSERT_TRUE(engine->submit(make_request(20, 400, 5), long_one.on_update()).ok());
  long_one.wait_for_tokens(1);
  ASSERT_TRUE(engine->submit(request, waiting.on_update()).ok());
  long_one.wait();
  waiting.wait();
  EXPECT_EQ(waiting.tokens(), expected);
  EXPECT_EQ(waiting.finish().cached_tokens, 384);
  const StoreFigures figures = store->figures();
  EXPECT_EQ(figures.prefetched, 6U);
  EXPECT_EQ(figures.memory_reads, 6U);
}

TEST(StateEngine, DamageCostsTimeAndNothingElse) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(450, 20, 6);
  const std::vector<std::int32_t> expected = alone(fixture_model(), request);
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), request);
  // Every page but the first ones of segments is suspect.
  for (const auto& entry : fs::directory_iterator(directory.path() / "segments")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto bytes = static_cast<std::int64_t>(fs::file_size(entry.path()));
    file.seekp(bytes / 2);
    file.put('x').put('y').put('z');
  }
  for (int times = 0; times < 2; ++times) {
    const auto engine = make_engine(state_options(open_store(directory.path())));
    Finish finish;
    EXPECT_EQ(answer_of(*engine, request, &finish), expected);
    engine->wait_idle();
    EXPECT_EQ(engine->load().restores_failed, times == 0 ? 1 : 0);
    // What was damaged was computed and saved again.
    EXPECT_GE(finish.cached_tokens, times == 0 ? 64 : 448);
  }
}

TEST(StateEngine, TenantsDoNotShareWhatIsStored) {
  const TemporaryDirectory directory;
  GenerationRequest request = make_request(300, 5, 7);
  request.cache_salt = "one";
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), request);
  const auto engine = make_engine(state_options(open_store(directory.path())));
  request.cache_salt = "other";
  Finish finish;
  (void)answer_of(*engine, request, &finish);
  EXPECT_EQ(finish.cached_tokens, 0);
  request.cache_salt = "one";
  (void)answer_of(*engine, request, &finish);
  EXPECT_EQ(finish.cached_tokens, 256);
}

TEST(StateEngine, ARequestMayEndWhileItComesBack) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(420, 5, 8);
  (void)answer_of(*make_engine(state_options(open_store(directory.path()))), request);
  Answer answer, cut;  // longer than the engine
  const auto engine = make_engine(state_options(
      open_store(directory.path(), {.read_bytes_per_second = 1e9, .latency = Seconds(0.3)})));
  const auto id = engine->submit(request, answer.on_update());
  ASSERT_TRUE(id.ok());
  engine->abort(*id);
  EXPECT_EQ(answer.wait().error.code(), Code::kAborted);
  expect_all_blocks_free(*engine);
  // And so may the engine.
  ASSERT_TRUE(engine->submit(request, cut.on_update()).ok());
}

// What a prefill worker brings back leaves like what it computes; and who loses interest meanwhile
// leaves nothing behind.
TEST(StateEngine, PrefillWorkersBringPromptsBackToo) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(420, 10, 4);
  const std::vector<std::int32_t> expected = alone(fixture_model(), request);
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread, .faults = {}});
  const DevicePace paces[] = {{}, {}, {.read_bytes_per_second = 1e9, .latency = Seconds(0.5)}};
  for (int turn = 0; turn < 3; ++turn) {
    Worker prefill(*network, fixture_model(),
                   state_options(open_store(directory.path(), paces[turn])));
    Worker decode(*network, fixture_model(), state_options(nullptr));
    const TransferId transfer = random_transfer_id();
    Answer answer;
    Prefilled prefilled;
    const RequestId reserved = take(decode.engine->reserve(request, transfer));
    ASSERT_TRUE(decode.engine->attach(reserved, answer.on_update()).ok());
    const RequestId id = take(prefill.engine->prefill_and_push(request, decode.endpoint->address(),
                                                               transfer, prefilled.on_prefilled()));
    const bool given_up = turn == 2;
    if (given_up) {
      prefill.engine->abort(id);
      decode.engine->abort(reserved);
    }
    EXPECT_EQ(prefilled.wait().finish.error.ok(), !given_up);
    answer.wait();
    EXPECT_TRUE(given_up || answer.tokens() == expected);
    prefill.engine->wait_idle();
    EXPECT_EQ(prefill.engine->load().store_hit_tokens, turn == 1 ? 384 : 0);
    decode.expect_clean();
  }
}

// Little memory, many conversations at once, some of which are the same for a while.
TEST(StateEngine, UnderLoadAnswersAreThoseOfOneProcess) {
  const TemporaryDirectory directory;
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < 10; ++i) {
    requests.push_back(make_mixed_request(100 + 40 * static_cast<int>(i % 5), 30, 30 + i % 7));
    expected.push_back(alone(fixture_model(), requests.back()));
  }
  for (int rounds = 0; rounds < 3; ++rounds) {
    EngineOptions options = state_options(open_store(directory.path()));
    options.kv_bytes = 12 * fixture_model().config().kv_shape().block_bytes();
    options.state.codec = rounds == 1 ? "splitzip:channel" : "none";
    const auto engine = make_engine(options);
    std::vector<std::unique_ptr<Answer>> answers;
    for (const GenerationRequest& request : requests) {
      answers.push_back(std::make_unique<Answer>());
      ASSERT_TRUE(engine->submit(request, answers.back()->on_update()).ok());
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(answers[i]->wait().error.ok()) << answers[i]->wait().error.message();
      EXPECT_EQ(answers[i]->tokens(), expected[i]) << rounds << " " << i;
    }
    engine->wait_idle();
    EXPECT_TRUE(rounds == 0 || engine->load().store_hit_tokens > 0);
  }
}

TEST(StateEngine, RefusesCachesWhoseBlocksNobodyElseCanUse) {
  const TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  const auto refusal = [&](const EngineOptions& options) {
    return Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options).status().code();
  };
  EXPECT_EQ(refusal(state_options(store, "int4:recent=1")), Code::kUnsupported);
  EngineOptions options = state_options(store);
  options.prefix_caching = false;
  EXPECT_EQ(refusal(options), Code::kUnsupported);
  options = state_options(store);
  options.eviction = take(make_eviction_rule("h2o:keep=0.5"));
  EXPECT_EQ(refusal(options), Code::kUnsupported);
  options = state_options(store);
  options.state.codec = "zip";
  EXPECT_FALSE(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options).ok());
}

}  // namespace
}  // namespace kvlane
