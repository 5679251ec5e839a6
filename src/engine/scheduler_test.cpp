// What the scheduler promises: nobody waits for another's whole prompt, priorities and clients get
// what is theirs, prefixes are found again, and whoever has to stop goes on where it was.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "engine/engine_fixture.h"

namespace kvlane {
namespace {

constexpr int kWaitSeconds = 60;

std::size_t fixture_block_bytes() { return fixture_model().config().kv_shape().block_bytes(); }

// Remembers in which order answers began and ended.
class Order {
 public:
  OnUpdate watch(std::string name) {
    ++open_;
    return [this, name = std::move(name)](const Update& update) {
      const std::lock_guard lock(mutex_);
      if (!update.tokens.empty() && begun_.insert(name).second) events_.push_back(name + " begins");
      if (!update.finish) return;
      EXPECT_TRUE(update.finish->error.ok()) << update.finish->error.message();
      events_.push_back(name + " ends");
      --open_;
      changed_.notify_all();
    };
  }
  std::vector<std::string> wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(kWaitSeconds), [this] { return open_ == 0; }));
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
  std::set<std::string> begun_;
  std::vector<std::string> events_;
};

std::ptrdiff_t place(const std::vector<std::string>& events, const std::string& event) {
  return std::find(events.begin(), events.end(), event) - events.begin();
}

TEST(Scheduler, AShortPromptDoesNotWaitForALongOne) {
  const auto engine = make_engine({.chunk_tokens = 16});
  Order order;
  ASSERT_TRUE(engine->submit(make_request(500, 1, 1), order.watch("long")).ok());
  ASSERT_TRUE(engine->submit(make_request(20, 1, 2), order.watch("short")).ok());
  const std::vector<std::string> events = order.wait();
  EXPECT_LT(place(events, "short ends"), place(events, "long begins"));
}

TEST(Scheduler, TheFirstInRankIsNotHeldUpByALotOfOthers) {
  const auto engine = make_engine({.chunk_tokens = 16});
  Order order;
  ASSERT_TRUE(engine->submit(make_request(300, 1, 1), order.watch("first")).ok());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(
        engine->submit(make_request(300, 1, 10 + i), order.watch("other" + std::to_string(i)))
            .ok());
  }
  EXPECT_EQ(place(order.wait(), "first begins"), 0);
}

TEST(Scheduler, PriorityGoesFirstAndStopsOthersWhenItMust) {
  const auto engine = make_engine({.kv_bytes = 6 * fixture_block_bytes(), .sequences_max = 4});
  Order order;
  Answer running;
  const GenerationRequest low = [] {
    GenerationRequest request = make_request(200, 150, 1);
    request.priority = 5;
    return request;
  }();
  ASSERT_TRUE(engine->submit(low, running.on_update()).ok());
  running.wait_for_tokens(20);
  GenerationRequest urgent = make_request(300, 5, 2);
  urgent.priority = -1;
  ASSERT_TRUE(engine->submit(urgent, order.watch("urgent")).ok());
  order.wait();
  EXPECT_TRUE(running.wait().error.ok());
  EXPECT_GE(engine->load().preemptions, 1);
  EXPECT_EQ(running.tokens(), alone(fixture_model(), low));
  EXPECT_GT(running.wait().account.wait_for_memory, 0);
  EXPECT_GT(running.wait().account.restore, 0);
}

TEST(Scheduler, WhatAStoppedPromptFindsOfItsOwnIsNotCounted) {
  const auto engine = make_engine({.kv_bytes = 7 * fixture_block_bytes(),
                                   .host_bytes = 20 * fixture_block_bytes(),
                                   .chunk_tokens = 16});
  // Computed before the engine takes its next step, however late this thread gets on.
  const GenerationRequest urgent = make_request(300, 5, 2);
  const std::vector<std::int32_t> expected = alone(fixture_model(), urgent);
  GenerationRequest low = make_request(400, 45, 1);
  low.priority = 5;
  Answer stopped;
  ASSERT_TRUE(engine->submit(low, stopped.on_update()).ok());
  while (engine->load().steps < 3) std::this_thread::yield();
  EXPECT_EQ(answer_of(*engine, urgent), expected);
  EXPECT_EQ(stopped.wait().cached_tokens, 0);
  EXPECT_EQ(stopped.tokens(), alone(fixture_model(), low));
  EXPECT_GE(engine->load().preemptions, 1);
  EXPECT_EQ(engine->load().prefix_hit_tokens, 0);
  EXPECT_EQ(engine->load().host_hit_tokens, 0);
}

TEST(Scheduler, AClientWithManyRequestsDoesNotKeepAnotherWaiting) {
  const auto engine = make_engine({.sequences_max = 1});
  Order order;
  for (int i = 0; i < 20; ++i) {
    GenerationRequest request = make_request(60, 20, i);
    request.client = "many";
    ASSERT_TRUE(engine->submit(request, order.watch("many" + std::to_string(i))).ok());
  }
  GenerationRequest request = make_request(60, 20, 99);
  request.client = "one";
  ASSERT_TRUE(engine->submit(request, order.watch("one")).ok());
  const std::vector<std::string> events = order.wait();
  // Behind those that were computed before it came, and at most one more.
  EXPECT_LT(place(events, "one begins"), place(events, "many10 begins"));
}

TEST(Scheduler, FindsPrefixesAgainUnlessTheSaltDiffers) {
  const auto engine = make_engine();
  const auto cached = [&](GenerationRequest request) {
    Answer answer;
    EXPECT_TRUE(engine->submit(request, answer.on_update()).ok());
    const int tokens = answer.wait().cached_tokens;
    EXPECT_EQ(answer.tokens(), alone(fixture_model(), request));
    return tokens;
  };
  GenerationRequest request = make_request(200, 10, 1);
  EXPECT_EQ(cached(request), 0);
  EXPECT_EQ(cached(request), 192);
  GenerationRequest salted = request;
  salted.cache_salt = "another tenant";
  EXPECT_EQ(cached(salted), 0);
  EXPECT_EQ(cached(salted), 192);
  GenerationRequest whole_blocks = make_request(128, 10, 1);  // the same tokens, fewer
  EXPECT_EQ(cached(whole_blocks), 64) << "one token at least is computed, for its logits";
  GenerationRequest another = request;
  another.prompt[70] = another.prompt[70] == 5 ? 6 : 5;
  EXPECT_EQ(cached(another), 64);
}

TEST(Scheduler, FindsWhatItAnsweredInTheNextRoundOfAConversation) {
  const auto engine = make_engine();
  GenerationRequest first = make_request(100, 100, 1);
  Answer answer;
  ASSERT_TRUE(engine->submit(first, answer.on_update()).ok());
  answer.wait();
  GenerationRequest second = first;
  second.prompt.insert(second.prompt.end(), answer.tokens().begin(), answer.tokens().end());
  second.prompt.push_back(7);
  Answer next;
  ASSERT_TRUE(engine->submit(second, next.on_update()).ok());
  EXPECT_EQ(next.wait().cached_tokens, 192);
  EXPECT_EQ(next.tokens(), alone(fixture_model(), second));
}

TEST(Scheduler, OfPromptsThatBeginAlikeAndComeAtOnceOneIsComputed) {
  const auto engine = make_engine({.chunk_tokens = 32});
  std::vector<GenerationRequest> requests;
  std::vector<Answer> answers(8);
  for (int i = 0; i < 8; ++i) {
    requests.push_back(make_request(400, 5, 1));
    requests.back().prompt[390] = 10 + i;
    requests.back().prompt.resize(391 + i);
    ASSERT_TRUE(engine->submit(requests.back(), answers[i].on_update()).ok());
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(answers[i].wait().error.ok());
    EXPECT_EQ(answers[i].tokens(), alone(fixture_model(), requests[i]));
    EXPECT_EQ(answers[i].wait().cached_tokens, i == 0 ? 0 : 384);
  }
  EXPECT_EQ(engine->load().prefix_hit_tokens, 7 * 384);
  engine->wait_idle();
  EXPECT_EQ(engine->load().blocks_free, engine->load().blocks_total);
}

TEST(Scheduler, WhatLeftTheKvMemoryComesBackFromTheHost) {
  const auto engine = make_engine(
      {.kv_bytes = 5 * fixture_block_bytes(), .host_bytes = 20 * fixture_block_bytes()});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) {
      const GenerationRequest request = make_request(250, 10, i);
      Answer answer;
      ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
      EXPECT_EQ(answer.wait().cached_tokens, round == 0 ? 0 : 192);
      EXPECT_EQ(answer.tokens(), alone(fixture_model(), request));
    }
  }
  EXPECT_GT(engine->load().host_hit_tokens, 0);
  EXPECT_LE(engine->load().host_blocks, 20);
}

TEST(Scheduler, SeveralAnswersShareThePromptAndDrawApart) {
  const auto engine = make_engine({.kv_bytes = 12 * fixture_block_bytes()});
  GenerationRequest request = make_request(280, 30, 1);  // 5 blocks, so six alone take 30
  request.sampling.temperature = 1;
  request.n = 6;
  Answer told;
  ASSERT_TRUE(engine->submit(request, told.on_update()).ok());
  const Finish finish = told.wait();
  const std::vector<Answer::One>& answers = told.all();
  ASSERT_EQ(answers.size(), 6U);
  EXPECT_EQ(finish.completion_tokens, 180);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(answers[i].tokens.size(), 30U);
    for (int j = 0; j < i; ++j) EXPECT_NE(answers[i].tokens, answers[j].tokens);
  }
  EXPECT_EQ(engine->load().preemptions, 0);
  request.n = 1;
  EXPECT_EQ(answers[0].tokens, alone(fixture_model(), request)) << "the first is that of one alone";
}

TEST(Scheduler, CountsWhatItDid) {
  const auto engine = make_engine();
  for (int i = 0; i < 2; ++i) {
    Answer answer;
    ASSERT_TRUE(engine->submit(make_request(130, 3, 1), answer.on_update()).ok());
    answer.wait();
  }
  engine->wait_idle();
  const EngineLoad load = engine->load();
  EXPECT_EQ(load.prefix_query_tokens, 260);
  EXPECT_EQ(load.prefix_hit_tokens, 128);
  EXPECT_EQ(load.blocks_cached, 2);
  EXPECT_EQ(load.blocks_free, load.blocks_total);
  EXPECT_GT(load.steps, 3);
  EXPECT_GT(load.step_seconds, load.schedule_seconds);
  EXPECT_GT(load.schedule_seconds, 0);
}

}  // namespace
}  // namespace kvlane
