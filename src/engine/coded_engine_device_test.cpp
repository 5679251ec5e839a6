// Engines whose coded cache is on a device, one of emulated threads: whatever the way of blocks,
// answers are those of one process, and formats without kernels are refused.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device_fixture.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

using testing::HasSubstr;

EngineOptions coded_device_options(const char* format) {
  return {.kv_bytes = std::size_t{1} << 23,
          .kv_format = make_format(format, model_on_host()),
          .chunk_tokens = 100};
}

std::vector<std::int32_t> alone_with(const char* format, const GenerationRequest& request) {
  const auto engine = take(Engine::create(model_on_device(), fixture_tokenizer(), nullptr,
                                          coded_device_options(format)));
  return answers_of(*engine, request).at(0).tokens;
}

std::vector<std::int32_t> pushed_tokens(Worker& prefill, Worker& decode,
                                        const GenerationRequest& request) {
  const TransferId transfer = random_transfer_id();
  Answer answer;
  Prefilled prefilled;
  const RequestId id = take(decode.engine->reserve(request, transfer));
  EXPECT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
  take(prefill.engine->prefill_and_push(request, decode.endpoint->address(), transfer,
                                        prefilled.on_prefilled()));
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  EXPECT_TRUE(prefilled.wait().finish.error.ok());
  return answer.tokens();
}

// Sealed slabs as they are, the open block and those of the window as rows.
TEST(CodedEngineOnDevice, PushedAnswersEqualOneProcess) {
  for (const char* const format : {"hack", "hack:p=64,sink=1,recent=1"}) {
    const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
    EngineOptions options = coded_device_options(format);
    options.kv_codec = "splitzip";
    Worker prefill(*network, model_on_device(), options);
    Worker decode(*network, model_on_device(), coded_device_options(format));
    for (const int prompt : {64, 135}) {
      const GenerationRequest request =
          make_mixed_request(prompt, 3, static_cast<std::uint32_t>(prompt));
      EXPECT_EQ(pushed_tokens(prefill, decode, request), alone_with(format, request))
          << format << " " << prompt;
    }
    prefill.expect_clean();
    decode.expect_clean();
  }
}

// A slab is the same bytes on both sides.
TEST(CodedEngineOnDevice, WorkersOnDevicesAndOnCpusMix) {
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker on_device(*network, model_on_device(), coded_device_options("hack:recent=1"));
  Worker on_cpu(*network, model_on_host(), coded_device_options("hack:recent=1"));
  const GenerationRequest request = make_request(140, 3, 4);
  EXPECT_EQ(pushed_tokens(on_device, on_cpu, request).size(), 3U);
  EXPECT_EQ(pushed_tokens(on_cpu, on_device, request).size(), 3U);
  on_device.expect_clean();
  on_cpu.expect_clean();
}

// Blocks that are shared, rows that are copied for a second answer, sealed blocks pushed out to the
// host's memory, and back.
TEST(CodedEngineOnDevice, BlocksThatMoveKeepTheirCodes) {
  const Model& model = model_on_device();
  const std::size_t block = model.config().kv_shape().block_bytes();
  GenerationRequest request = make_mixed_request(140, 3, 5);
  request.n = 2;
  const auto roomy =
      take(Engine::create(model, fixture_tokenizer(), nullptr, coded_device_options("hack")));
  const auto expected = answers_of(*roomy, request);
  ASSERT_EQ(expected.size(), 2U);
  EXPECT_NE(expected[0].tokens, expected[1].tokens);
  // From the prefix cache.
  EXPECT_EQ(answers_of(*roomy, request), expected);
  EXPECT_EQ(roomy->load().prefix_hit_tokens, 128);

  EngineOptions options = coded_device_options("hack");
  // Two blocks of rows, and nine sealed ones.
  options.chunk_tokens = 64;
  options.kv_bytes = 4 * block;
  options.host_bytes = 16 * block;
  options.sequences_max = 2;
  const auto tight = take(Engine::create(model, fixture_tokenizer(), nullptr, options));
  EXPECT_EQ(answers_of(*tight, request), expected);
  // Others take all the blocks; then the first one comes back from the host's memory.
  EXPECT_EQ(tight->load().blocks_total, 9);
  for (const std::uint32_t seed : {7, 9, 11, 13}) {
    answers_of(*tight, make_request(130, 1, seed));
  }
  EXPECT_EQ(answers_of(*tight, request), expected);
  tight->wait_idle();
  EXPECT_GT(tight->load().host_hit_tokens, 0);
}

// Whichever call of the device fails: the request ends with that error, unless what failed only
// saves time, and the engine goes on.
TEST(CodedEngineOnDevice, AnyCallOfTheDeviceMayFail) {
  const Model& model = model_on_device();
  const GenerationRequest request = make_request(65, 2, 5);
  const auto engine = take(
      Engine::create(model, fixture_tokenizer(), nullptr, coded_device_options("hack:recent=1")));
  const auto expected = answers_of(*engine, request);
  int refused = 0;
  constexpr int kStep = 9;
  for (int n = 1; n == 1 || device().calls() >= n - kStep; n += kStep) {
    device().fail_call(n);
    Answer answer;
    EXPECT_TRUE(engine->submit(request, answer.on_update()).ok());
    const Status status = answer.wait().error;
    EXPECT_TRUE(status.ok() || status.code() == Code::kInternal) << status.message();
    EXPECT_TRUE(!status.ok() || answer.all() == expected) << n;
    refused += status.ok() ? 0 : 1;
    engine->wait_idle();
    EXPECT_EQ(engine->load().blocks_free, engine->load().blocks_total) << n;
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(refused, 5);
  device().fail_call(0);
}

TEST(CodedEngineOnDevice, RefusesFormatsWithoutKernels) {
  for (const char* const format : {"int8", "hack:k=8,v=8", "hack:compute=dequantise"}) {
    const auto engine = Engine::create(model_on_device(), fixture_tokenizer(), nullptr,
                                       coded_device_options(format));
    ASSERT_EQ(engine.status().code(), Code::kUnsupported) << format;
    EXPECT_THAT(engine.status().message(), HasSubstr("has no kernels for devices")) << format;
  }
}

}  // namespace
}  // namespace kvlane
