// Engines with a state store whose model is on a device, one of emulated threads: sequences go on
// where they were, with the answers of one engine that never forgot anything. What they save is
// also the CPU's to bring back, and the reverse.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_sanitizers.h"
#include "engine/device_fixture.h"
#include "engine/state_fixture.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

EngineOptions device_state_options(std::shared_ptr<Store> store, const std::string& format = "bf16",
                                   const char* form = "kv") {
  const Model& model = model_on_host();
  EngineOptions options;
  options.kv_bytes = std::size_t{1} << 23;
  options.kv_format = take(make_kv_format(
      format, {.shape = model.config().kv_shape(), .rope = &model.rope(), .isa = model.isa()}));
  options.state.store = std::move(store);
  options.state.forms = take(make_state_forms(form, model.config().layers, nullptr, 0));
  return options;
}

std::unique_ptr<Engine> device_engine(const EngineOptions& options,
                                      const Model& model = model_on_device()) {
  return take(Engine::create(model, fixture_tokenizer(), nullptr, options));
}

TEST(StateEngineOnDevice, AConversationGoesOnAfterARestart) {
  struct Case {
    const char *format, *codec, *form;
  };
  const std::vector<Case> cases = {{"bf16", "none", "kv"},
                                   {"bf16", "splitzip", "kv"},
                                   {"bf16", "splitzip:channel", "kv"},
                                   {"hack", "none", "kv"},
                                   {"bf16", "none", "hidden"},
                                   {"bf16", "splitzip", "hidden=1"},
                                   {"hack", "none", "hidden"},
                                   {"hack:p=64", "none", "hidden"}};
  for (const auto& [format, codec, form] : every_other_if(kThreadSanitized, cases)) {
    SCOPED_TRACE(std::string(format) + " " + codec + " " + form);
    const TemporaryDirectory directory;
    const GenerationRequest first = make_request(180, 15, 1);
    const auto whole = device_engine(device_state_options(nullptr, format));
    const std::vector<std::int32_t> first_answer = answer_of(*whole, first);
    const GenerationRequest second = next_turn(first, first_answer, make_request(20, 5, 77));
    const std::vector<std::int32_t> second_answer = answer_of(*whole, second);
    EngineOptions options = device_state_options(open_store(directory.path()), format, form);
    options.state.codec = codec;
    EXPECT_EQ(answer_of(*device_engine(options), first), first_answer);
    options.state.store.reset();
    const auto engine =
        device_engine(device_state_options(open_store(directory.path()), format, form));
    Finish finish;
    EXPECT_EQ(answer_of(*engine, second, &finish), second_answer);
    // All complete blocks of the first turn, its answer included.
    EXPECT_EQ(finish.cached_tokens, 194 / kBlockTokens * kBlockTokens);
    EXPECT_GT(finish.account.restore, 0);
    engine->wait_idle();
    const EngineLoad load = engine->load();
    EXPECT_EQ(load.store_hit_tokens, finish.cached_tokens);
    EXPECT_EQ(load.restores, 1);
    EXPECT_EQ(load.restores_failed, 0);
    EXPECT_EQ(load.save_failures, 0);
    expect_all_blocks_free(*engine);
  }
}

// Blocks have the same names on both, so either goes on from what the other has saved.
TEST(StateEngineOnDevice, EnginesOnCpusAndOnDevicesShareAStore) {
  for (const auto& [format, form] : {std::pair{"bf16", "kv"}, std::pair{"hack", "kv"},
                                     std::pair{"bf16", "hidden"}, std::pair{"hack", "hidden"}}) {
    for (const bool device_first : {false, true}) {
      SCOPED_TRACE(std::string(format) + " " + form +
                   (device_first ? " device first" : " CPU first"));
      const TemporaryDirectory directory;
      const GenerationRequest request = make_request(150, 3, 5);
      std::vector<std::int32_t> restored[2];
      for (const int turn : {0, 1, 2}) {
        const bool on_device = device_first == (turn == 0);
        // What is brought back is what is there, whatever is saved.
        const auto engine = device_engine(
            device_state_options(open_store(directory.path()), format, turn == 0 ? form : "kv"),
            on_device ? model_on_device() : model_on_host());
        Finish finish;
        const auto answer = answer_of(*engine, request, &finish);
        if (turn > 0) restored[turn - 1] = answer;
        EXPECT_EQ(finish.cached_tokens, turn == 0 ? 0 : 128);
        engine->wait_idle();
        EXPECT_EQ(engine->load().restores, turn == 0 ? 0 : 1);
        EXPECT_EQ(engine->load().restores_failed, 0);
      }
      EXPECT_EQ(restored[0].size(), 3U);
      EXPECT_EQ(restored[0], restored[1]);
    }
  }
}

// Memory for one sequence: every other one has to leave, and the device's memory is all there is.
TEST(StateEngineOnDevice, WhatHadToLeaveMemoryIsReadAndNotComputed) {
  const TemporaryDirectory directory;
  EngineOptions options = device_state_options(open_store(directory.path()));
  options.kv_bytes = 4 * model_on_device().config().kv_shape().block_bytes();
  const auto engine = device_engine(options);
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> answers;
  for (std::uint32_t i = 0; i < 3; ++i) {
    requests.push_back(make_mixed_request(200, 4, 20 + i));
    answers.push_back(answer_of(*engine, requests.back()));
    EXPECT_EQ(answers.back(), alone(model_on_device(), requests.back()));
  }
  engine->wait_idle();
  engine->flush_state();
  for (std::uint32_t i = 0; i < 3; ++i) {
    Finish finish;
    EXPECT_EQ(answer_of(*engine, requests[i], &finish), answers[i]);
    EXPECT_EQ(finish.cached_tokens, 192);
  }
  EXPECT_GE(engine->load().store_hit_tokens, 2 * 192);
}

TEST(StateEngineOnDevice, BlocksThatAreNotSavedAreCounted) {
  const TemporaryDirectory directory;
  EngineOptions options = device_state_options(open_store(directory.path()));
  options.state.saving_bytes = 1;  // one block at a time
  const auto store = options.state.store;
  std::int64_t failures = 0;
  {
    const auto engine = device_engine(options);
    answer_of(*engine, make_request(400, 2, 3));
    engine->wait_idle();
    failures = engine->load().save_failures;
  }
  store->flush();
  EXPECT_EQ(static_cast<std::int64_t>(store->all().size()) + failures, 401 / kBlockTokens);
}

// Some answer, some come back, some are saved, all at once, from little memory.
TEST(StateEngineOnDevice, InCompanyAnswersAreThoseOfOneProcess) {
  const TemporaryDirectory directories[2];
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < 5; ++i) {
    requests.push_back(make_mixed_request(70 + 40 * static_cast<int>(i % 3), 6, 30 + i % 4));
    expected.push_back(alone(model_on_device(), requests.back()));
  }
  for (const int turn : {0, 1, 2, 3}) {
    const int form = turn / 2, rounds = turn % 2;
    EngineOptions options =
        device_state_options(open_store(directories[form].path(),
                                        {.read_bytes_per_second = 1e9, .latency = Seconds(0.02)}),
                             "bf16", form == 0 ? "kv" : "hidden");
    options.kv_bytes = 9 * model_on_device().config().kv_shape().block_bytes();
    options.state.codec = form == 0 ? "splitzip" : "none";
    const auto engine = device_engine(options);
    std::vector<std::unique_ptr<Answer>> answers;
    for (const GenerationRequest& request : requests) {
      answers.push_back(std::make_unique<Answer>());
      ASSERT_TRUE(engine->submit(request, answers.back()->on_update()).ok());
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(answers[i]->wait().error.ok()) << answers[i]->wait().error.message();
      EXPECT_EQ(answers[i]->tokens(), expected[i]) << rounds << " " << i;
    }
    expect_all_blocks_free(*engine);
    EXPECT_TRUE(rounds == 0 || engine->load().store_hit_tokens > 0);
  }
}

TEST(StateEngineOnDevice, OthersAnswerWhileASequenceComesBack) {
  const TemporaryDirectory directory;
  const GenerationRequest slow = make_request(150, 3, 4), quick = make_request(20, 4, 6);
  const std::vector<std::int32_t> expected = alone(model_on_device(), quick);
  const std::vector<std::int32_t> slow_expected =
      answer_of(*device_engine(device_state_options(open_store(directory.path()))), slow);
  // All of the other answer is there before what is read.
  const auto engine = device_engine(device_state_options(
      open_store(directory.path(), {.read_bytes_per_second = 1e9, .latency = Seconds(3)})));
  Answer restored, other;
  ASSERT_TRUE(engine->submit(slow, restored.on_update()).ok());
  ASSERT_TRUE(engine->submit(quick, other.on_update()).ok());
  other.wait();
  EXPECT_EQ(other.tokens(), expected);
  EXPECT_TRUE(restored.tokens().empty());
  restored.wait();
  EXPECT_EQ(restored.tokens(), slow_expected);
  EXPECT_EQ(restored.finish().cached_tokens, 128);
}

TEST(StateEngineOnDevice, DamageCostsTimeAndNothingElse) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(200, 3, 6);
  const std::vector<std::int32_t> expected =
      answer_of(*device_engine(device_state_options(open_store(directory.path()))), request);
  for (const auto& entry : fs::directory_iterator(directory.path() / "segments")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::int64_t>(fs::file_size(entry.path())) / 2);
    file.put('x').put('y').put('z');
  }
  for (int times = 0; times < 2; ++times) {
    const auto engine = device_engine(device_state_options(open_store(directory.path())));
    Finish finish;
    EXPECT_EQ(answer_of(*engine, request, &finish), expected);
    engine->wait_idle();
    EXPECT_EQ(engine->load().restores_failed, times == 0 ? 1 : 0);
    // What was damaged was computed and saved again.
    EXPECT_GE(finish.cached_tokens, times == 0 ? 64 : 192);
  }
}

TEST(StateEngineOnDevice, ARequestMayEndWhileItComesBack) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(200, 3, 8);
  (void)answer_of(*device_engine(device_state_options(open_store(directory.path()))), request);
  Answer answer, cut;  // longer than the engine
  const auto engine = device_engine(device_state_options(
      open_store(directory.path(), {.read_bytes_per_second = 1e9, .latency = Seconds(0.3)})));
  const RequestId id = take(engine->submit(request, answer.on_update()));
  engine->abort(id);
  EXPECT_EQ(answer.wait().error.code(), Code::kAborted);
  expect_all_blocks_free(*engine);
  // And so may the engine.
  ASSERT_TRUE(engine->submit(request, cut.on_update()).ok());
}

struct Counts {
  EngineLoad load;
  bool over;  // there was no such call
};

// Of an engine that gives the expected answer although call `n` beside the line of passes fails.
Counts answer_while_a_call_fails(Engine& engine, const GenerationRequest& request,
                                 const std::vector<std::int32_t>& expected, int n) {
  device().fail_call(n, EmulatedAccelerator::Counted::kBesideTheLine);
  EXPECT_EQ(answer_of(engine, request), expected) << n;
  engine.wait_idle();
  engine.flush_state();
  const bool over = device().calls() < n;
  device().fail_call(0);
  // The engine tells what is counted beside it when it next looks.
  (void)answer_of(engine, make_request(3, 1, 1));
  engine.wait_idle();
  expect_all_blocks_free(engine);
  return {engine.load(), over};
}

// Whichever call beside the line of passes fails: what cannot be brought back is computed, what
// cannot be saved is counted.
TEST(StateEngineOnDevice, AnyCopyMayFail) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(150, 2, 3);
  EngineOptions options = device_state_options(open_store(directory.path()));
  options.state.codec = "splitzip";
  const std::vector<std::int32_t> expected = answer_of(*device_engine(options), request);
  options.state.store.reset();
  int failed = 0;
  for (int n = 1;; n += 4) {
    const TemporaryDirectory other;
    const bool saves = n % 8 == 1;
    const auto engine =
        device_engine(device_state_options(open_store(saves ? other.path() : directory.path())));
    const auto [load, over] = answer_while_a_call_fails(*engine, request, expected, n);
    EXPECT_EQ(load.restores_failed + load.save_failures, over ? 0 : 1) << n;
    failed += over ? 0 : 1;
    if (over) break;
  }
  EXPECT_GT(failed, 1);
}

// What a prefill worker brings back leaves like what it computes, while it saves.
TEST(StateEngineOnDevice, PrefillWorkersBringPromptsBackToo) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(150, 3, 4);
  const std::vector<std::int32_t> expected = alone(model_on_device(), request);
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread, .faults = {}});
  for (const bool stored : {false, true}) {
    EngineOptions options = device_state_options(open_store(directory.path()));
    options.kv_codec = "splitzip";
    Worker prefill(*network, model_on_device(), options);
    Worker decode(*network, model_on_device(), device_state_options(nullptr));
    const TransferId transfer = random_transfer_id();
    Answer answer;
    Prefilled prefilled;
    const RequestId reserved = take(decode.engine->reserve(request, transfer));
    ASSERT_TRUE(decode.engine->attach(reserved, answer.on_update()).ok());
    take(prefill.engine->prefill_and_push(request, decode.endpoint->address(), transfer,
                                          prefilled.on_prefilled()));
    EXPECT_TRUE(prefilled.wait().finish.error.ok());
    EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    EXPECT_EQ(answer.tokens(), expected);
    prefill.engine->wait_idle();
    EXPECT_EQ(prefill.engine->load().store_hit_tokens, stored ? 128 : 0);
    decode.expect_clean();
  }
}

// K and V that came from 8 bits are those that their names promise.
TEST(StateEngineOnDevice, EightBitsComeBackOnOtherEnginesAlike) {
  const TemporaryDirectory directory;
  const GenerationRequest request = make_request(150, 3, 5);
  const auto options = [&] {
    return device_state_options(open_store(directory.path()), "bf16", "hidden:int8");
  };
  (void)answer_of(*device_engine(options()), request);
  std::vector<std::int32_t> answers[2];
  for (std::vector<std::int32_t>& answer : answers) {
    Finish finish;
    answer = answer_of(*device_engine(options()), request, &finish);
    EXPECT_EQ(finish.cached_tokens, 128);
  }
  EXPECT_EQ(answers[0], answers[1]);
  // For others they are not there.
  Finish finish;
  (void)answer_of(*device_engine(device_state_options(open_store(directory.path()))), request,
                  &finish);
  EXPECT_EQ(finish.cached_tokens, 0);
}

// Whichever call beside the line of passes fails while hidden states leave: answers are what they
// are, and what is not saved is counted.
TEST(StateEngineOnDevice, HiddenStatesThatCannotLeaveAreCounted) {
  const GenerationRequest request = make_request(150, 3, 3);
  const std::vector<std::int32_t> expected = alone(model_on_device(), request);
  int failed = 0;
  for (int n = 1;; n += 2) {
    const TemporaryDirectory directory;
    const EngineOptions options =
        device_state_options(open_store(directory.path()), "bf16", "hidden");
    const auto engine = device_engine(options);
    const auto [load, over] = answer_while_a_call_fails(*engine, request, expected, n);
    const auto stored = static_cast<std::int64_t>(options.state.store->all().size());
    EXPECT_EQ(stored + load.hidden_tokens_lost / kBlockTokens, 2) << n;
    EXPECT_TRUE(!over || stored == 2) << n;
    EXPECT_EQ(load.restores_failed, 0) << n;
    failed += stored < 2 ? 1 : 0;
    if (over) break;
  }
  EXPECT_GT(failed, 1);
}

// Nor is there an engine where the device has no memory for what is kept, or refuses a lane.
TEST(StateEngineOnDevice, AnEngineThatADeviceRefusesIsAnError) {
  const TemporaryDirectory directory;
  const EngineOptions options =
      device_state_options(open_store(directory.path()), "hack", "hidden");
  const Model& model = model_on_device();  // loaded while the device still works
  int refused = 0;
  for (int n = 1;; ++n, ++refused) {
    device().fail_call(n);
    const auto engine = Engine::create(model, fixture_tokenizer(), nullptr, options);
    const bool over = device().calls() < n;
    device().fail_call(0);
    EXPECT_EQ(engine.status().code(), over ? Code::kOk : Code::kInternal) << n;
    if (over) break;
  }
  EXPECT_GT(refused, 12);
}

}  // namespace
}  // namespace kvlane
