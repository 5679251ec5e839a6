// One engine: right answers in any company, ends for every reason, limits, aborts, nothing leaks.
// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "engine/engine_fixture.h"
#include "engine/output_text.h"
#include "model/forward.h"
#include "ops/sampling.h"

namespace kvlane {
namespace {

TEST(Engine, GreedyAnswerEqualsAPlainLoopOverForwardPasses) {
  const GenerationRequest request = make_request(70, 20, 1);
  const Model& model = fixture_model();
  auto pool = take(BlockPool::create(model.config().kv_shape(), std::size_t{1} << 24));
  const auto forward = take(Forward::create(model, 128, 1));
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(100).ok());
  std::vector<std::int32_t> tokens = request.prompt;
  std::vector<std::int32_t> expected;
  for (std::span<const std::int32_t> next = tokens; expected.size() < 20;) {
    const ForwardSpan span{&table, next, 1};
    ASSERT_TRUE(forward->run({&span, 1}, {}).ok());
    expected.push_back(sample_token(forward->logits(0), {.temperature = 0}, {}, 0));
    next = {&expected.back(), 1};
  }
  EXPECT_EQ(alone(model, request), expected);
}

TEST(Engine, ManyRequestsAtOnceAnswerAsEachAlone) {
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < 24; ++i) {
    const int prompt = 1 + static_cast<int>(philox4x32(3, {i, 0, 0, 0})[0] % 180);
    requests.push_back(
        make_request(prompt, 1 + static_cast<int>(i * 3), i, i % 2 == 0 ? 0.0F : 1.0F));
    expected.push_back(alone(fixture_model(), requests.back()));
  }
  for (const int chunk : {5, 64, 512}) {
    const auto engine = make_engine({.chunk_tokens = chunk, .sequences_max = 7});
    std::vector<Answer> answers(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(engine->submit(requests[i], answers[i].on_update()).ok());
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Finish& finish = answers[i].wait();
      EXPECT_EQ(answers[i].reason(), FinishReason::kLength) << finish.error.message();
      EXPECT_EQ(finish.prompt_tokens, static_cast<int>(requests[i].prompt.size()));
      EXPECT_EQ(finish.completion_tokens, requests[i].max_tokens);
      EXPECT_EQ(answers[i].tokens(), expected[i]) << "request " << i << " chunk " << chunk;
    }
    engine->wait_idle();
    EXPECT_EQ(engine->load().blocks_free, engine->load().blocks_total);
  }
}

TEST(Engine, SeedDecidesTheDraw) {
  const GenerationRequest request = make_request(10, 40, 5, 1.0F);
  GenerationRequest other = request;
  other.seed = 6;
  EXPECT_EQ(alone(fixture_model(), request), alone(fixture_model(), request));
  EXPECT_NE(alone(fixture_model(), request), alone(fixture_model(), other));
}

TEST(Engine, EndsAtTheEndOfSequenceTokenUnlessToldNotTo) {
  // Find a seed whose free-running answer contains the end of sequence.
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    GenerationRequest request = make_request(5, 100, seed, 1.5F);
    const std::vector<std::int32_t> all = alone(fixture_model(), request);
    const auto eos = std::find(all.begin(), all.end(), 2);
    if (eos == all.end()) continue;
    request.ignore_eos = false;
    const auto engine = make_engine();
    Answer answer;
    ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
    const Finish& finish = answer.wait();
    EXPECT_EQ(answer.reason(), FinishReason::kStop);
    EXPECT_EQ(answer.tokens(), std::vector<std::int32_t>(all.begin(), eos));
    EXPECT_EQ(finish.completion_tokens, static_cast<int>(answer.tokens().size()) + 1);
    return;
  }
  FAIL() << "no answer of 200 contained the end of sequence";
}

TEST(Engine, StopStringsEndTheTextBeforeThem) {
  GenerationRequest request = make_request(20, 60, 9, 1.0F);
  const std::string text = fixture_tokenizer().decode(alone(fixture_model(), request));
  ASSERT_GT(text.size(), 30U);
  request.stop = {"no such words in it", text.substr(17, 4)};
  const auto engine = make_engine();
  Answer answer;
  ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
  answer.wait();
  EXPECT_EQ(answer.reason(), FinishReason::kStop);
  EXPECT_EQ(answer.text(), text.substr(0, text.find(text.substr(17, 4))));
}

TEST(Engine, TimeAccountAddsUp) {
  const auto engine = make_engine();
  Answer answer;
  const TimePoint start = SteadyClock::now();
  ASSERT_TRUE(engine->submit(make_request(150, 30, 2), answer.on_update()).ok());
  const TimeAccount account = answer.wait().account;
  const double total = seconds_since(start);
  EXPECT_GT(account.prefill, 0);
  EXPECT_GT(account.decode, 0);
  EXPECT_GE(account.prefill, account.prefill_attention);
  EXPECT_GE(account.decode, account.decode_attention);
  EXPECT_LE(account.total(), total);
  EXPECT_GE(account.total(), 0.5 * total);
}

TEST(Engine, RefusesWhatItCannotDoNamingIt) {
  const auto engine = make_engine();
  const GenerationRequest good = make_request(5, 5, 1);
  const auto refusal = [&](auto change) {
    GenerationRequest request = good;
    change(request);
    const auto result = engine->submit(request, [](const Update&) { FAIL() << "was refused"; });
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    return result.status().message();
  };
  using R = GenerationRequest;
  EXPECT_THAT(refusal([](R& r) { r.prompt.clear(); }), testing::HasSubstr("no tokens"));
  EXPECT_THAT(refusal([](R& r) { r.prompt[2] = 96; }), testing::HasSubstr("96"));
  EXPECT_THAT(refusal([](R& r) { r.prompt[2] = -1; }), testing::HasSubstr("-1"));
  EXPECT_THAT(refusal([](R& r) { r.prompt.assign(512, 5); }), testing::HasSubstr("512"));
  EXPECT_THAT(refusal([](R& r) { r.max_tokens = 0; }), testing::HasSubstr("max_tokens"));
  EXPECT_THAT(refusal([](R& r) { r.max_tokens = 508; }), testing::HasSubstr("max_tokens"));
  EXPECT_THAT(refusal([](R& r) { r.sampling.temperature = -1; }),
              testing::HasSubstr("temperature"));
  EXPECT_THAT(refusal([](R& r) { r.sampling.temperature = NAN; }),
              testing::HasSubstr("temperature"));
  EXPECT_THAT(refusal([](R& r) { r.sampling.top_p = 0; }), testing::HasSubstr("top_p"));
  EXPECT_THAT(refusal([](R& r) { r.sampling.top_k = -1; }), testing::HasSubstr("top_k"));
  EXPECT_THAT(refusal([](R& r) { r.stop = {""}; }), testing::HasSubstr("stop"));
}

TEST(Engine, RefusesARequestLargerThanTheWholeMemory) {
  const std::size_t block = fixture_model().config().kv_shape().block_bytes();
  const auto engine = make_engine({.kv_bytes = 2 * block});
  const auto result = engine->submit(make_request(100, 29, 1), [](const Update&) {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(engine->validate(make_request(100, 28, 1)).ok());
  EXPECT_EQ(engine->context(), 2 * kBlockTokens);
  EXPECT_EQ(make_engine({})->context(), fixture_model().context());
}

TEST(Engine, WaitsForBlocksInOrderOfArrival) {
  const std::size_t block = fixture_model().config().kv_shape().block_bytes();
  const auto engine = make_engine({.kv_bytes = 3 * block});
  std::vector<Answer> answers(8);
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(engine->submit(make_request(100, 20, i), answers[i].on_update()).ok());
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(answers[i].wait().error.ok());
    EXPECT_EQ(answers[i].tokens(), alone(fixture_model(), make_request(100, 20, i)));
  }
}

TEST(Engine, SaysThatTheQueueIsFull) {
  const auto engine = make_engine({.sequences_max = 1, .queued_max = 2});
  std::vector<Answer> answers(50);
  int accepted = 0;
  int refused = 0;
  for (std::uint32_t i = 0; i < 50; ++i) {
    const auto result = engine->submit(make_request(100, 100, i), answers[accepted].on_update());
    if (result.ok()) {
      ++accepted;
    } else {
      EXPECT_EQ(result.status().code(), Code::kExhausted);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (int i = 0; i < accepted; ++i) EXPECT_TRUE(answers[i].wait().error.ok());
}

TEST(Engine, AbortAtAnyMomentReturnsEveryBlock) {
  const auto engine = make_engine({.chunk_tokens = 16, .sequences_max = 4});
  std::minstd_rand random(1);
  for (int round = 0; round < 40; ++round) {
    std::vector<Answer> answers(6);
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < 6; ++i) {
      ids.push_back(take(engine->submit(make_request(120, 60, i), answers[i].on_update())));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    for (int i = 0; i < 6; i += 2) engine->abort(ids[i]);
    for (int i = 0; i < 6; ++i) {
      const Finish& finish = answers[i].wait();
      if (!finish.error.ok()) {
        EXPECT_EQ(finish.error.code(), Code::kAborted);
        EXPECT_EQ(i % 2, 0);
      }
    }
    engine->wait_idle();
    ASSERT_EQ(engine->load().blocks_free, engine->load().blocks_total) << "round " << round;
  }
}

TEST(Engine, TellsEverybodyWhenItShutsDown) {
  std::vector<Answer> answers(5);
  {
    const auto engine = make_engine({.sequences_max = 2});
    for (std::uint32_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(engine->submit(make_request(100, 400, i), answers[i].on_update()).ok());
    }
    answers[0].wait_for_tokens(3);
  }
  for (Answer& answer : answers) EXPECT_EQ(answer.wait().error.code(), Code::kAborted);
}

TEST(OutputText, HoldsBackWhatMayBecomeAStopString) {
  const Tokenizer& tokenizer = fixture_tokenizer();
  const auto feed = [&](const std::string& text, std::vector<std::string> stop) {
    OutputText output(tokenizer, std::move(stop));
    std::string seen;
    for (const std::int32_t token : take(tokenizer.encode(text))) seen += output.push(token);
    const std::string before_end = seen;
    seen += output.finish();
    return std::pair{before_end, seen};
  };
  EXPECT_EQ(feed("abcabd", {"abd"}), (std::pair<std::string, std::string>{"abc", "abc"}));
  EXPECT_EQ(feed("xxabab", {"ababc"}), (std::pair<std::string, std::string>{"xx", "xxabab"}));
  EXPECT_EQ(feed("one two", {"two", "e t"}), (std::pair<std::string, std::string>{"on", "on"}));
  EXPECT_EQ(feed("aaa", {}), (std::pair<std::string, std::string>{"aaa", "aaa"}));
}

// Letter by letter, of which the first `minimum` may not end the answer.
TEST(OutputText, AStopStringThatEndsBehindTheMinimumCounts) {
  const Tokenizer& tokenizer = fixture_tokenizer();
  const auto feed = [&](const std::string& text, std::vector<std::string> stop, int minimum) {
    OutputText output(tokenizer, std::move(stop));
    std::string seen;
    for (const char letter : text) {
      const auto tokens = take(tokenizer.encode(std::string(1, letter)));
      EXPECT_EQ(tokens.size(), 1U);
      seen += output.push(tokens.front(), --minimum < 0);
    }
    return seen + output.finish();
  };
  EXPECT_EQ(feed("xabcx", {"abc"}, 3), "x");      // its last letter is behind the minimum
  EXPECT_EQ(feed("xabcx", {"abc"}, 4), "xabcx");  // it was whole before
  EXPECT_EQ(feed("abcabcx", {"abc"}, 4), "abc");
  EXPECT_EQ(feed("xabyx", {"ab", "xabcd"}, 3), "xabyx");  // held back for the longer one
  EXPECT_EQ(feed("xabyab", {"ab", "xabcd"}, 3), "xaby");
  EXPECT_EQ(feed("aaaa", {"aa"}, 2), "a");
}

}  // namespace
}  // namespace kvlane
