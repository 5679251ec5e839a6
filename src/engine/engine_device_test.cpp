// The engine with its model on a device: one of emulated threads, whose memory nobody else may
// touch.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/device_fixture.h"

namespace kvlane {
namespace {

// Either's logits are as far from the truth as 1.25 times a plain implementation's, in the mean,
// which device_forward_test and forward_test see to: so they differ by at most twice that.
TEST(EngineOnDevice, ProbabilitiesAreThoseOfTheCpu) {
  GenerationRequest request = make_mixed_request(100, 1, 2);
  request.logprobs = 20;
  std::map<std::int32_t, float> logprobs[2];
  for (const bool on_device : {false, true}) {
    const Model& model = on_device ? model_on_device() : model_on_host();
    const auto engine = take(
        Engine::create(model, fixture_tokenizer(), nullptr, {.kv_bytes = std::size_t{1} << 22}));
    Answer answer;
    ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
    ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    for (const TokenLogprob& each : answer.all()[0].logprobs.at(0).top) {
      logprobs[on_device][each.token] = each.logprob;
    }
  }
  double squares = 0;
  int both = 0;
  for (const auto& [token, logprob] : logprobs[0]) {
    const auto other = logprobs[1].find(token);
    if (other == logprobs[1].end()) continue;
    squares += std::pow(double{other->second} - logprob, 2);
    ++both;
  }
  EXPECT_GE(both, 18);
  const auto text = take(read_text_file(kOnDeviceDirectory / "expected.json", 1 << 20));
  const auto plain = nlohmann::json::parse(text)["errors"]["bfloat16"]["rms"].get<double>();
  EXPECT_LE(std::sqrt(squares / both), 2 * 1.25 * plain);
}

// Who asks how likely tokens are gets them from the host's sampler, the others from the device.
TEST(EngineOnDevice, GreedyAnswersAreThoseOfTheHostsSampler) {
  GenerationRequest request = make_request(20, 8, 3);
  request.n = 2;
  std::vector<Answer::One> all[2];
  for (const bool asks : {false, true}) {
    if (asks) request.logprobs = 1;
    const auto engine = take(Engine::create(model_on_device(), fixture_tokenizer(), nullptr,
                                            {.kv_bytes = std::size_t{1} << 20}));
    Answer answer;
    ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
    ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    all[asks] = answer.all();
  }
  ASSERT_EQ(all[0].size(), 2U);
  for (int choice = 0; choice < 2; ++choice) {
    EXPECT_EQ(all[0][choice].tokens.size(), 8U);
    EXPECT_EQ(all[0][choice].tokens, all[1][choice].tokens);
    EXPECT_TRUE(all[0][choice].logprobs.empty());
    EXPECT_EQ(all[1][choice].logprobs.size(), 8U);
  }
}

TEST(EngineOnDevice, PushedAnswersEqualOneProcessForEveryCodec) {
  const Model& model = model_on_device();
  for (const char* codec : {"none", "splitzip", "splitzip:channel"}) {
    const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
    Worker prefill(*network, model, {.chunk_tokens = 50, .kv_codec = codec});
    Worker decode(*network, model);
    for (const int prompt : {3, 64, 130}) {
      const GenerationRequest request =
          make_mixed_request(prompt, 4, static_cast<std::uint32_t>(prompt));
      const TransferId transfer = random_transfer_id();
      Answer answer;
      Prefilled prefilled;
      const RequestId id = take(decode.engine->reserve(request, transfer));
      ASSERT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
      take(prefill.engine->prefill_and_push(request, decode.endpoint->address(), transfer,
                                            prefilled.on_prefilled()));
      ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
      EXPECT_TRUE(prefilled.wait().finish.error.ok());
      EXPECT_EQ(answer.tokens(), alone(model, request)) << codec << " " << prompt;
    }
    prefill.expect_clean();
    decode.expect_clean();
  }
}

// Blocks that are shared, copied for a second answer, pushed out to the host's memory, and back.
TEST(EngineOnDevice, BlocksThatMoveKeepTheirRows) {
  const Model& model = model_on_device();
  const std::size_t block = model.config().kv_shape().block_bytes();
  GenerationRequest request = make_mixed_request(140, 6, 5);
  request.n = 2;
  const auto answers_of = [&](Engine& engine) {
    Answer answer;
    EXPECT_TRUE(engine.submit(request, answer.on_update()).ok());
    EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    return answer.all();
  };
  const auto roomy =
      take(Engine::create(model, fixture_tokenizer(), nullptr, {.kv_bytes = 32 * block}));
  const auto expected = answers_of(*roomy);
  ASSERT_EQ(expected.size(), 2U);
  EXPECT_NE(expected[0].tokens, expected[1].tokens);

  const auto tight = take(Engine::create(model, fixture_tokenizer(), nullptr,
                                         {.kv_bytes = 5 * block, .host_bytes = 16 * block}));
  EXPECT_EQ(answers_of(*tight), expected);
  // Another prompt takes all the blocks; then the first one comes back from the host's memory.
  Answer other;
  ASSERT_TRUE(tight->submit(make_mixed_request(250, 2, 7), other.on_update()).ok());
  ASSERT_TRUE(other.wait().error.ok());
  EXPECT_EQ(answers_of(*tight), expected);
  tight->wait_idle();
  EXPECT_GT(tight->load().host_hit_tokens, 0);
}

// Whichever call of the device fails: the request ends with that error, unless what failed only
// saves time, and the engine goes on.
TEST(EngineOnDevice, AnyCallOfTheDeviceMayFail) {
  const Model& model = model_on_device();
  GenerationRequest request = make_request(3, 2, 5);
  request.n = 2;
  const auto engine =
      take(Engine::create(model, fixture_tokenizer(), nullptr, {.kv_bytes = std::size_t{1} << 20}));
  const auto answers_with = [&](int n) {
    Answer answer;
    device().fail_call(n);
    EXPECT_TRUE(engine->submit(request, answer.on_update()).ok());
    const Status status = answer.wait().error;
    EXPECT_TRUE(status.ok() || status.code() == Code::kInternal) << status.message();
    return status.ok() ? answer.all() : std::vector<Answer::One>();
  };
  const auto expected = answers_with(0);
  int refused = 0;
  for (int n = 1;; ++n) {
    const auto answers = answers_with(n);
    refused += answers.empty() ? 1 : 0;
    EXPECT_TRUE(answers.empty() || answers == expected) << n;
    const int calls = device().calls();
    if (n % 8 == 0) {
      EXPECT_EQ(answers_with(0), expected) << n;
    }
    engine->wait_idle();
    EXPECT_EQ(engine->load().blocks_free, engine->load().blocks_total) << n;
    if (calls < n) break;
  }
  EXPECT_GT(refused, 20);
  device().fail_call(0);
}

// ThreadSanitizer makes emulated threads slow, and looks for races, of which every third call has
// as many.
#ifdef __SANITIZE_THREAD__
constexpr int kCallStep = 3;
#else
constexpr int kCallStep = 1;
#endif

// A fork, or a block that should go to the host's memory or come back from there: what cannot be
// copied is computed.
TEST(EngineOnDevice, AnyCopyOfBlocksMayFail) {
  const Model& model = model_on_device();
  const std::size_t block = model.config().kv_shape().block_bytes();
  GenerationRequest request = make_request(67, 2, 5);
  request.n = 2;
  GenerationRequest other = make_request(130, 1, 7);
  std::vector<Answer::One> expected;
  for (int n = 0; n == 0 || device().calls() >= n; n += kCallStep) {
    device().fail_call(n, EmulatedAccelerator::Counted::kBesideTheLine);
    const auto engine = take(Engine::create(model, fixture_tokenizer(), nullptr,
                                            {.kv_bytes = 3 * block, .host_bytes = 16 * block}));
    // Its blocks go to the host's memory when the other one needs theirs.
    for (const GenerationRequest* const each : std::array{&request, &other, &request}) {
      Answer answer;
      EXPECT_TRUE(engine->submit(*each, answer.on_update()).ok());
      EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
      if (each == &other) continue;
      if (expected.empty()) expected = answer.all();
      EXPECT_EQ(answer.all(), expected) << n;
    }
    engine->wait_idle();
    EXPECT_EQ(engine->load().blocks_free, engine->load().blocks_total) << n;
    ASSERT_LT(n, 50);
  }
  device().fail_call(0);
}

TEST(EngineOnDevice, IsNotMadeWhenTheDeviceRefuses) {
  const Model& model = model_on_device();  // before calls fail
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    device().fail_call(failed + 1);
    const auto engine =
        Engine::create(model, fixture_tokenizer(), nullptr, {.kv_bytes = std::size_t{1} << 20});
    done = device().calls() <= failed;
    EXPECT_EQ(engine.status().code(), done ? Code::kOk : Code::kInternal) << failed;
  }
  EXPECT_GT(failed, 5);
  device().fail_call(0);
}

// Slabs that cannot be read or written end the transfer, and nothing else.
TEST(EngineOnDevice, AnyCallMayFailWhileSlabsMove) {
  const Model& model = model_on_device();
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  const GenerationRequest request = make_mixed_request(3, 2, 4);
  const std::vector<std::int32_t> expected = alone(model, request);
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    device().fail_call(0);
    Worker prefill(*network, model, {.kv_codec = "splitzip"});
    Worker decode(*network, model);
    const auto both = [&] {
      const TransferId transfer = random_transfer_id();
      Answer answer;
      Prefilled prefilled;
      const RequestId id = take(decode.engine->reserve(request, transfer));
      EXPECT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
      take(prefill.engine->prefill_and_push(request, decode.endpoint->address(), transfer,
                                            prefilled.on_prefilled()));
      const bool left = prefilled.wait().finish.error.ok();
      if (!left) decode.engine->abort(id);  // as a gateway would
      const bool arrived = answer.wait().error.ok();
      EXPECT_TRUE(!arrived || answer.tokens() == expected) << failed;
      return left && arrived;
    };
    device().fail_call(failed + 1, EmulatedAccelerator::Counted::kBesideTheLine);
    const bool right = both();
    done = device().calls() <= failed;
    EXPECT_EQ(right, done) << failed;
    device().fail_call(0);
    EXPECT_TRUE(both()) << failed;
    prefill.expect_clean();
    decode.expect_clean();
  }
  EXPECT_GT(failed, 20);
}

}  // namespace
}  // namespace kvlane
