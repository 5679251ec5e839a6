// Prefill on one engine, decode on another: the same tokens as on one, whatever the codec, the way
// and the network; errors in bounded time where the network fails; nothing leaks.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/test_sanitizers.h"
#include "engine/engine_fixture.h"
#include "transfer/tcp.h"

namespace kvlane {
namespace {

std::unique_ptr<TestNetwork> make_network(TestFaults faults = {}) {
  return TestNetwork::create({.drive = TestNetwork::Drive::kThread, .faults = faults});
}

TEST(Disaggregation, PushedAnswersEqualOneProcessForEveryCodecAndModel) {
  for (const char* name :
       {"llama-mha-bf16-tied", "llama-gqa-bf16-llama3-sharded", "qwen3-gqa-bf16", "llama-mqa-f32",
        "qwen2-gqa-bf16", "mistral-gqa-bf16-window", "phi3-gqa-bf16-longrope", "falcon-gqa-bf16",
        "falcon-mha-f32-sequential", "opt-mha-bf16"}) {
    const Model& model = fixture_model(name);
    for (const char* codec : {"none", "splitzip", "splitzip:channel", "auto"}) {
      const auto network = make_network();
      Worker prefill(*network, model, {.chunk_tokens = 100, .kv_codec = codec});
      Worker decode(*network, model);
      for (const int prompt :
           every_other_if(kSanitized, std::vector{1, 2, 63, 64, 65, 127, 128, 129, 300})) {
        const GenerationRequest request = make_mixed_request(prompt, 20, prompt);
        Push push(prefill, decode, request);
        const Finish& finish = push.answer.wait();
        ASSERT_TRUE(finish.error.ok()) << finish.error.message();
        EXPECT_EQ(push.answer.tokens(), alone(model, request))
            << name << " " << codec << " " << prompt;
        const PrefillOutcome& outcome = push.prefilled.wait();
        EXPECT_TRUE(outcome.finish.error.ok()) << outcome.finish.error.message();
        EXPECT_EQ(outcome.first.at(0).token, push.answer.tokens()[0]);

        const KvShape shape = model.config().kv_shape();
        const std::size_t raw =
            std::size_t(prompt) * shape.layers * shape.kv_heads * shape.head_dim * 4;
        EXPECT_EQ(finish.kv.raw, raw);
        EXPECT_EQ(outcome.finish.kv.raw, raw);
        EXPECT_EQ(outcome.finish.kv.shipped, finish.kv.shipped);
        const std::size_t headers = kFrameHeaderBytes * shape.layers * blocks_for(prompt);
        if (std::string(codec) == "none") {
          EXPECT_EQ(finish.kv.shipped, raw + headers);
        } else {
          EXPECT_LE(finish.kv.shipped, raw + headers + 64 * shape.layers * blocks_for(prompt));
        }
      }
      prefill.expect_clean();
      decode.expect_clean();
    }
  }
}

TEST(Disaggregation, WhatThePrefillWorkerHadAlreadyIsTold) {
  const auto network = make_network();
  Worker prefill(*network, fixture_model());
  Worker decode(*network, fixture_model());
  const GenerationRequest request = make_mixed_request(200, 3, 1);
  for (const int cached : {0, 192}) {
    Push pushed(prefill, decode, request);
    EXPECT_EQ(pushed.answer.wait().cached_tokens, cached);
    EXPECT_EQ(pushed.prefilled.wait().finish.cached_tokens, cached);
  }
}

TEST(Disaggregation, PromptsThatNeverFitOnTheirWayAreRefusedAtOnce) {
  const auto network = make_network();
  const auto endpoint = take(Endpoint::start(
      *network, {.model = fixture_model().identity(), .outgoing_bytes_max = 65536}));
  const auto engine = take(Engine::create(fixture_model(), fixture_tokenizer(), endpoint.get(),
                                          {.kv_bytes = std::size_t{1} << 24}));
  Prefilled fits;
  ASSERT_TRUE(
      engine->prefill_and_park(make_request(10, 1, 1), random_transfer_id(), fits.on_prefilled())
          .ok());
  EXPECT_TRUE(fits.wait().finish.error.ok());
  const Status refused =
      engine->prefill_and_park(make_request(400, 1, 1), random_transfer_id(), nullptr).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("this worker has 65536"), std::string::npos)
      << refused.message();
}

// The first prompts find out that the link is slow, which the next one then knows. They take the
// link so long that they wait for it together, however slowly this machine computes them.
TEST(Disaggregation, AutoUsesACodecOnceTheLinkIsKnownToBeSlow) {
  const Model& model = fixture_model();
  TestFaults faults;
  faults.bytes_per_second = 3e5;
  const auto network = make_network(faults);
  Worker prefill(*network, model, {.sequences_max = 8, .kv_codec = "auto"});
  Worker decode(*network, model, {.sequences_max = 8});
  constexpr int kFirst = 6;
  const KvShape shape = model.config().kv_shape();
  ASSERT_GT(kFirst * blocks_for(300) * shape.block_bytes(), kSpeedWindowBytesMin * 3 / 2);
  std::vector<std::unique_ptr<Push>> pushes;
  for (std::uint32_t i = 0; i < kFirst; ++i) {
    pushes.push_back(std::make_unique<Push>(prefill, decode, make_mixed_request(300, 2, i)));
  }
  for (const auto& push : pushes) {
    const Finish& finish = push->answer.wait();
    EXPECT_TRUE(finish.error.ok()) << finish.error.message();
    EXPECT_EQ(push->prefilled.wait().finish.kv.codec, finish.kv.codec);
  }
  const auto speed = prefill.endpoint->link_speed(decode.endpoint->address());
  ASSERT_TRUE(speed.has_value());
  EXPECT_LT(speed->bytes_per_second, 2 * faults.bytes_per_second);
  Push next(prefill, decode, make_mixed_request(300, 2, kFirst));
  EXPECT_THAT(next.answer.wait().kv.codec, testing::HasSubstr("splitzip"));
}

// The test's network, unlimited, is never the bottleneck: nobody has ever waited for it.
TEST(Disaggregation, AutoLeavesAFastLinkAlone) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker prefill(*network, model, {.kv_codec = "auto"});
  Worker decode(*network, model);
  for (std::uint32_t i = 0; i < 4; ++i) {
    Push push(prefill, decode, make_mixed_request(300, 2, i));
    EXPECT_EQ(push.answer.wait().kv.codec, "none");
  }
  EXPECT_EQ(prefill.engine->load().codebooks_counted, 0);
}

// Room for one of them on its way, that the first has when the second takes its blocks.
TEST(Disaggregation, WhoIsUrgentWaitsForFramesThatOthersHave) {
  const auto network = make_network();
  const std::size_t block_bytes = fixture_model().config().kv_shape().block_bytes();
  // With one place it is that which lacks, and what was computed is not found again.
  for (const int places : {16, 1}) {
    SCOPED_TRACE(places);
    const EngineOptions small{.kv_bytes = 8 * block_bytes,
                              .prefix_caching = false,
                              .chunk_tokens = 16,
                              .sequences_max = places};
    Worker prefill(*network, fixture_model(), small, Seconds(5), 11 * block_bytes);
    Worker decode(*network, fixture_model());
    GenerationRequest patient = make_request(440, 3, 1);
    GenerationRequest urgent = make_request(430, 3, 2);
    urgent.priority = -1;
    Push first(prefill, decode, patient);
    while (prefill.engine->load().steps < 3) std::this_thread::yield();
    Push second(prefill, decode, urgent);
    for (Push* const push : {&first, &second}) {
      EXPECT_TRUE(push->answer.wait().error.ok()) << push->answer.wait().error.message();
    }
    EXPECT_EQ(first.answer.tokens(), alone(fixture_model(), patient));
    EXPECT_EQ(second.answer.tokens(), alone(fixture_model(), urgent));
    EXPECT_EQ(prefill.engine->load().preemptions, 0);
  }
}

TEST(Disaggregation, ParkedAnswersEqualOneProcess) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker prefill(*network, model, {.kv_codec = "splitzip"});
  Worker decode(*network, model);
  for (const int prompt : {1, 64, 200}) {
    const GenerationRequest request = make_mixed_request(prompt, 15, prompt);
    const TransferId transfer = random_transfer_id();
    GenerationRequest first = request;
    first.max_tokens = 1;  // what routers of vLLM's protocol send
    Prefilled prefilled;
    ASSERT_TRUE(prefill.engine->prefill_and_park(first, transfer, prefilled.on_prefilled()).ok());
    ASSERT_TRUE(prefilled.wait().finish.error.ok()) << prefilled.wait().finish.error.message();
    prefill.expect_clean();  // parked frames hold no blocks
    Answer answer;
    ASSERT_TRUE(
        decode.engine
            ->fetch_and_decode(request, prefill.endpoint->address(), transfer, answer.on_update())
            .ok());
    EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    EXPECT_EQ(answer.tokens(), alone(model, request));
  }
  decode.expect_clean();
}

TEST(Disaggregation, ManyAtOnceOverTcpEqualOneProcess) {
  const Model& model = fixture_model();
  const auto network = take(make_tcp_network());
  Worker prefill(*network, model, {.chunk_tokens = 64, .sequences_max = 8, .kv_codec = "splitzip"});
  Worker decode(*network, model, {.sequences_max = 16});
  std::vector<GenerationRequest> requests;
  std::vector<std::unique_ptr<Push>> pushes;
  for (std::uint32_t i = 0; i < 16; ++i) {
    requests.push_back(make_mixed_request(1 + static_cast<int>(i * 17 % 250), 30, i));
    pushes.push_back(std::make_unique<Push>(prefill, decode, requests.back()));
  }
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    EXPECT_TRUE(pushes[i]->answer.wait().error.ok()) << pushes[i]->answer.wait().error.message();
    EXPECT_EQ(pushes[i]->answer.tokens(), alone(model, requests[i]));
    EXPECT_TRUE(pushes[i]->prefilled.wait().finish.error.ok());
  }
  prefill.expect_clean();
  decode.expect_clean();
}

TEST(Disaggregation, DelayAndReorderingChangeNothing) {
  const Model& model = fixture_model();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto network = make_network({.seed = seed, .delay_max = Seconds(0.005), .reorder = 0.3});
    Worker prefill(*network, model, {.kv_codec = "splitzip"});
    Worker decode(*network, model);
    const GenerationRequest request = make_mixed_request(250, 10, static_cast<std::uint32_t>(seed));
    Push push(prefill, decode, request);
    EXPECT_TRUE(push.answer.wait().error.ok()) << push.answer.wait().error.message();
    EXPECT_EQ(push.answer.tokens(), alone(model, request));
  }
}

TEST(Disaggregation, LossIsRepairedOrAnErrorNeverAWrongAnswer) {
  const Model& model = fixture_model();
  const GenerationRequest request = make_mixed_request(250, 10, 1);
  const std::vector<std::int32_t> expected = alone(model, request);
  int repaired = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto network = make_network({.seed = seed, .loss = 0.1});
    Worker prefill(*network, model, {}, Seconds(0.5));
    Worker decode(*network, model, {}, Seconds(0.5));
    Push push(prefill, decode, request);
    const bool delivered = push.prefilled.wait().finish.error.ok();
    if (!delivered) decode.engine->abort(push.decode_id);
    if (push.answer.wait().error.ok()) {
      EXPECT_EQ(push.answer.tokens(), expected) << "seed " << seed;
      ++repaired;
    }
    prefill.expect_clean();
    decode.expect_clean();
  }
  EXPECT_GT(repaired, 0);
}

TEST(Disaggregation, ACutLinkIsAnErrorOnBothSidesAndLeavesNothingBehind) {
  const Model& model = fixture_model();
  for (const std::uint64_t cut : {0, 1, 2, 3, 4, 5, 8, 11}) {
    for (const bool silent : {false, true}) {
      const auto network = make_network({.cut_after_messages = cut, .silent_cut = silent});
      Worker prefill(*network, model, {}, Seconds(0.3));
      Worker decode(*network, model, {}, Seconds(0.3));
      Push push(prefill, decode, make_mixed_request(250, 10, 1));
      // A link that never carried anything only ends the reservation when its lease does; the
      // router that hears of the failed prefill aborts it.
      EXPECT_FALSE(push.prefilled.wait().finish.error.ok()) << "cut after " << cut;
      decode.engine->abort(push.decode_id);
      EXPECT_FALSE(push.answer.wait().error.ok());
      prefill.expect_clean();
      decode.expect_clean();
    }
  }
}

TEST(Disaggregation, APeerThatIsNotThereIsAnError) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker prefill(*network, model);
  Prefilled prefilled;
  ASSERT_TRUE(prefill.engine
                  ->prefill_and_push(make_mixed_request(100, 5, 1), {"127.0.0.1", 9},
                                     random_transfer_id(), prefilled.on_prefilled())
                  .ok());
  EXPECT_EQ(prefilled.wait().finish.error.code(), Code::kUnavailable);
  Answer answer;
  const auto fetched = prefill.engine->fetch_and_decode(
      make_mixed_request(100, 5, 1), {"127.0.0.1", 9}, random_transfer_id(), answer.on_update());
  if (fetched.ok()) {
    EXPECT_FALSE(answer.wait().error.ok());
  }
  prefill.expect_clean();
}

TEST(Disaggregation, AnotherModelIsRefusedByName) {
  const auto network = make_network();
  Worker prefill(*network, fixture_model("llama-mha-bf16-tied"));
  Worker decode(*network, fixture_model());
  Push push(prefill, decode, make_mixed_request(100, 5, 1));
  EXPECT_FALSE(push.prefilled.wait().finish.error.ok());
  EXPECT_THAT(push.prefilled.wait().finish.error.message(), testing::HasSubstr("model"));
  decode.engine->abort(push.decode_id);
  EXPECT_FALSE(push.answer.wait().error.ok());
}

TEST(Disaggregation, AnotherPromptOnTheOtherSideIsRefused) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker prefill(*network, model);
  Worker decode(*network, model);
  const TransferId transfer = random_transfer_id();
  Answer answer;
  const RequestId id = take(decode.engine->reserve(make_mixed_request(99, 5, 1), transfer));
  ASSERT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
  Prefilled prefilled;
  ASSERT_TRUE(prefill.engine
                  ->prefill_and_push(make_mixed_request(100, 5, 1), decode.endpoint->address(),
                                     transfer, prefilled.on_prefilled())
                  .ok());
  EXPECT_THAT(answer.wait().error.message(), testing::HasSubstr("99"));
  EXPECT_FALSE(prefilled.wait().finish.error.ok());
  prefill.expect_clean();
  decode.expect_clean();
}

TEST(Disaggregation, WhoIsRefusedAnIdTakesNothingFromWhoHasIt) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker prefill(*network, model);
  Worker decode(*network, model);
  const GenerationRequest request = make_mixed_request(100, 5, 1);
  const TransferId transfer = random_transfer_id();
  Answer answer;
  const RequestId id = take(decode.engine->reserve(request, transfer));
  ASSERT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
  Answer refused;
  ASSERT_TRUE(
      decode.engine
          ->fetch_and_decode(request, prefill.endpoint->address(), transfer, refused.on_update())
          .ok());
  EXPECT_EQ(refused.wait().error.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.wait().error.message(), testing::HasSubstr("in use"));
  Prefilled prefilled;
  ASSERT_TRUE(prefill.engine
                  ->prefill_and_push(request, decode.endpoint->address(), transfer,
                                     prefilled.on_prefilled())
                  .ok());
  EXPECT_TRUE(prefilled.wait().finish.error.ok()) << prefilled.wait().finish.error.message();
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  EXPECT_EQ(answer.tokens(), alone(model, request));
  prefill.expect_clean();
  decode.expect_clean();
}

TEST(Disaggregation, AbortOnEitherSideAtAnyMomentReturnsEveryBlock) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker prefill(*network, model, {.chunk_tokens = 32});
  Worker decode(*network, model);
  std::minstd_rand random(7);
  for (int round = 0; round < 30; ++round) {
    Push push(prefill, decode, make_mixed_request(250, 60, round));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12000));
    if (round % 2 == 0) {
      prefill.engine->abort(push.prefill_id);
      push.prefilled.wait();
      decode.engine->abort(push.decode_id);
    } else {
      decode.engine->abort(push.decode_id);
    }
    push.answer.wait();
    push.prefilled.wait();
    prefill.expect_clean();
    decode.expect_clean();
  }
}

TEST(Disaggregation, ReservationsTakePlacesAndBlocks) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker decode(*network, model, {.sequences_max = 2, .queued_max = 1});
  const auto wait_for = [&](int running, int queued) {
    EngineLoad load;
    for (int i = 0; i < 5000 && (load.running != running || load.queued != queued); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      load = decode.engine->load();
    }
    EXPECT_EQ(load.running, running);
    EXPECT_EQ(load.queued, queued);
  };
  const RequestId first =
      take(decode.engine->reserve(make_mixed_request(10, 5, 1), random_transfer_id()));
  ASSERT_TRUE(decode.engine->reserve(make_mixed_request(10, 5, 2), random_transfer_id()).ok());
  wait_for(2, 0);
  ASSERT_TRUE(decode.engine->reserve(make_mixed_request(10, 5, 3), random_transfer_id()).ok());
  wait_for(2, 1);
  decode.engine->abort(first);
  wait_for(2, 0);
  Answer answer;
  ASSERT_TRUE(decode.engine->attach(first, answer.on_update()).ok());
  EXPECT_EQ(answer.wait().error.code(), Code::kNotFound);
  EXPECT_TRUE(decode.engine->reserve(make_mixed_request(10, 5, 3), random_transfer_id()).ok());
}

TEST(Disaggregation, AReservationThatNobodyUsesEndsWithItsLease) {
  const Model& model = fixture_model();
  const auto network = make_network();
  Worker decode(*network, model, {.reservation_lease = Seconds(0.1)});
  const RequestId reserved =
      take(decode.engine->reserve(make_mixed_request(10, 5, 1), random_transfer_id()));
  decode.expect_clean();  // waits until the engine is idle
  Answer answer;
  ASSERT_TRUE(decode.engine->attach(reserved, answer.on_update()).ok());
  EXPECT_EQ(answer.wait().error.code(), Code::kNotFound);
}

}  // namespace
}  // namespace kvlane
