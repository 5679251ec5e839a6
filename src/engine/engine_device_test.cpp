// The engine with its model on a device: one of emulated threads, whose memory nobody else may
// touch.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/engine_fixture.h"
#include "model/emulated_accelerator.h"

namespace kvlane {
namespace {

constexpr const char* kName = "llama-gqa-bf16-llama3-sharded";
const auto kDirectory = std::filesystem::path(KVLANE_SOURCE_DIR) / "tests/fixtures/models" / kName;

const Model& model_on_device() {
  static EmulatedAccelerator device;
  static const std::unique_ptr<Model> model =
      take(Model::load(kDirectory, {.isa = best_isa(), .device = &device}));
  return *model;
}

// Either's logits are as far from the truth as 1.25 times a plain implementation's, in the mean,
// which device_forward_test and forward_test see to: so they differ by at most twice that.
TEST(EngineOnDevice, ProbabilitiesAreThoseOfTheCpu) {
  GenerationRequest request = make_mixed_request(100, 1, 2);
  request.logprobs = 20;
  std::map<std::int32_t, float> logprobs[2];
  for (const bool on_device : {false, true}) {
    const Model& model = on_device ? model_on_device() : fixture_model(kName);
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
  const auto text = take(read_text_file(kDirectory / "expected.json", 1 << 20));
  const auto plain = nlohmann::json::parse(text)["errors"]["bfloat16"]["rms"].get<double>();
  EXPECT_LE(std::sqrt(squares / both), 2 * 1.25 * plain);
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

}  // namespace
}  // namespace kvlane
