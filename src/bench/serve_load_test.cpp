// The generator against a worker whose answers come at a known pace, and against servers that fail.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <set>
#include <thread>

#include "bench/gateway_bench.h"
#include "bench/serve_result.h"
#include "server/coroutine.h"
#include "server/http_server.h"

namespace kvlane {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using testing::HasSubstr;

// How much later than planned something may be seen on a busy machine. What must not be earlier is
// held exactly.
constexpr double kSlack = 0.25;
constexpr double kClockError = 1e-4;  // a timer of the engine may be this early

DrawnWorkload drawn(int input, int output) {
  DrawnWorkload options;
  options.input = around(input, 0);
  options.output = around(output, 0);
  return options;
}

Workload plan(const DrawnWorkload& options, std::size_t requests) {
  Result<Workload> workload = draw_workload(options, {.requests = requests}, 1);
  EXPECT_TRUE(workload.ok());
  return std::move(*workload);
}

LoadOptions options_for(const Url& server) {
  LoadOptions options;
  options.server = server;
  options.vocabulary = 1000;
  return options;
}

LoadOutcome run(const Workload& workload, const LoadOptions& options) {
  Result<LoadOutcome> outcome = run_load(workload, options);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return std::move(*outcome);
}

class PacedLoad : public testing::Test {
 protected:
  static std::unique_ptr<MockWorkers> workers(Pace pace) {
    Result<std::unique_ptr<MockWorkers>> started = MockWorkers::start(pace);
    EXPECT_TRUE(started.ok()) << started.status().message();
    return std::move(*started);
  }
};

TEST_F(PacedLoad, MeasuresWhatTheServerDoes) {
  const auto server = workers({50ms, 20ms});
  Workload workload = plan(drawn(8, 6), 4);
  for (std::size_t i = 0; i < 4; ++i) workload.conversations[i].due = 0.03 * static_cast<double>(i);
  LoadOptions options = options_for(server->decode());
  options.keep_text = true;
  const LoadOutcome outcome = run(workload, options);
  ASSERT_EQ(outcome.records.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const RequestRecord& record = outcome.records[i];
    ASSERT_TRUE(record.completed()) << record.status.message();
    EXPECT_DOUBLE_EQ(record.due, workload.conversations[i].due);
    EXPECT_EQ(record.allowed, record.due);
    EXPECT_GE(record.sent, record.due);
    EXPECT_EQ(record.answer.prompt_tokens, 8);
    EXPECT_EQ(record.answer.output_tokens(), 6);
    EXPECT_GE(ttft_of(record), 0.050 - kClockError);
    EXPECT_LT(ttft_of(record), 0.050 + kSlack);
    EXPECT_GE(e2el_of(record), 0.150 - kClockError);
    EXPECT_LT(e2el_of(record), 0.150 + kSlack);
    EXPECT_EQ(token_times_of(record.answer.text)->size(), 6u);
    ASSERT_TRUE(record.answer.account.has_value());
    EXPECT_NEAR(record.answer.account->prefill, 0.050, 1e-9);
  }
  EXPECT_GT(outcome.client_cpu, 0);
  const ServeResult result = summarise_load(outcome, {}, {99});
  EXPECT_NEAR(result.itl.median, 20, 5);
  EXPECT_NEAR(result.tpot.median, 20, 5);
}

TEST_F(PacedLoad, AClosedLoopKeepsItsNumber) {
  const auto server = workers({20ms, 1ms});
  LoadOptions options = options_for(server->decode());
  options.open_loop = false;
  options.concurrency = 3;
  const LoadOutcome outcome = run(plan(drawn(4, 2), 9), options);
  const ServeResult result = summarise_load(outcome, {}, {99});
  EXPECT_EQ(result.completed, 9u);
  EXPECT_LE(result.max_concurrent_requests, 3u);
  EXPECT_EQ(result.client_queue.max, 0) << "a client asks when it is free, so nothing waits";
  EXPECT_GE(outcome.duration, 3 * 0.021 - kClockError);
}

TEST_F(PacedLoad, AnOpenLoopCountsTheWaitForAPlace) {
  const auto server = workers({50ms, 1ms});
  LoadOptions options = options_for(server->decode());
  options.concurrency = 1;
  const LoadOutcome outcome = run(plan(drawn(4, 1), 3), options);  // all due at 0
  ASSERT_EQ(outcome.records.size(), 3u);
  EXPECT_EQ(outcome.records[2].due, 0);
  EXPECT_GE(outcome.records[2].allowed, 0.100 - kClockError);
  EXPECT_GE(ttft_of(outcome.records[2]), 0.150 - kClockError);
  EXPECT_LT(outcome.records[2].sent - outcome.records[2].allowed, kSlack) << "lateness is apart";
}

TEST_F(PacedLoad, RoundsRepeatTheAnswersBefore) {
  const auto server = workers({5ms, 1ms});
  DrawnWorkload options = drawn(4, 3);
  options.rounds = 3;
  options.think_time = 0.06;
  const LoadOutcome outcome = run(plan(options, 6), options_for(server->decode()));
  ASSERT_EQ(outcome.records.size(), 6u);
  for (const RequestRecord& record : outcome.records) {
    ASSERT_TRUE(record.completed()) << record.status.message();
    // Every round adds 4 tokens asked and 3 answered.
    EXPECT_EQ(record.answer.prompt_tokens, 4 + 7 * static_cast<int>(record.turn));
    for (const RequestRecord& before : outcome.records) {
      if (before.conversation != record.conversation || before.turn + 1 != record.turn) continue;
      EXPECT_DOUBLE_EQ(record.due, before.ended + 0.06);
      EXPECT_GE(record.sent, record.due);
    }
  }
}

TEST_F(PacedLoad, NothingIsSentAfterTheDuration) {
  const auto server = workers({30ms, 1ms});
  LoadOptions options = options_for(server->decode());
  options.open_loop = false;
  options.concurrency = 2;
  options.duration = 0.2;
  const LoadOutcome outcome = run(plan(drawn(4, 2), 1000), options);
  EXPECT_FALSE(outcome.interrupted);
  EXPECT_GE(outcome.records.size(), 2u);
  EXPECT_LT(outcome.records.size(), 100u);
  for (const RequestRecord& record : outcome.records) {
    EXPECT_TRUE(record.completed());
    EXPECT_LT(record.allowed, 0.2);
  }
}

TEST_F(PacedLoad, ASignalEndsTheRun) {
  const auto server = workers({10s, 10s});
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  LoadOptions options = options_for(server->decode());
  options.stop_descriptor = ends[0];
  std::thread signal([&ends] {
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
  });
  Workload workload = plan(drawn(4, 2), 3);
  workload.conversations[2].due = 1000;
  const LoadOutcome outcome = run(workload, options);
  signal.join();
  EXPECT_TRUE(outcome.interrupted);
  ASSERT_EQ(outcome.records.size(), 2u);
  for (const RequestRecord& record : outcome.records) {
    EXPECT_TRUE(record.unfinished);
    EXPECT_EQ(record.error, "");
  }
  EXPECT_LT(outcome.duration, 5);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(PacedLoad, ASlowAnswerIsATimeout) {
  const auto server = workers({10s, 10s});
  LoadOptions options = options_for(server->decode());
  options.timeout = Seconds(0.2);
  const LoadOutcome outcome = run(plan(drawn(4, 2), 1), options);
  EXPECT_EQ(outcome.records[0].error, "timeout");
  EXPECT_GE(outcome.records[0].ended, 0.2);
  EXPECT_LT(outcome.records[0].ended, 5);
}

TEST_F(PacedLoad, HoldsFiveHundredStreams) {
  const auto server = workers({100ms, 50ms});
  const LoadOutcome outcome = run(plan(drawn(16, 20), 500), options_for(server->decode()));
  const ServeResult result = summarise_load(outcome, {}, {99});
  EXPECT_EQ(result.completed, 500u) << outcome.records[0].status.message();
  EXPECT_EQ(result.max_concurrent_requests, 500u);
  EXPECT_EQ(result.output_tokens, 10000u);
}

// --- servers that fail ---------------------------------------------------------------------------

class FailingServer : public testing::Test {
 protected:
  Url start(HttpHandler handler) {
    HttpServerOptions options;
    options.bind = {"127.0.0.1", 0};
    auto server = HttpServer::start(loop_, options, std::move(handler));
    EXPECT_TRUE(server.ok());
    server_ = std::move(*server);
    return {server_->address(), ""};
  }

  EventLoop loop_;
  std::unique_ptr<HttpServer> server_;
};

HttpHandler answer_with(int status, std::string body) {
  return [status, body](const HttpRequest&, HttpReply& reply) -> asio::awaitable<void> {
    HttpResponse response;
    response.status = status;
    response.body = body;
    co_await reply.send(response);
  };
}

TEST_F(FailingServer, KindsOfErrorsAreTold) {
  const struct {
    int status;
    const char* body;
    const char* kind;
    const char* message;
  } cases[] = {
      {429, R"({"error": {"message": "full"}})", "http_429", "answered 429: full"},
      {500, "oops", "http_500", "answered 500: oops"},
      {404, "[1]", "http_404", "[1]"},
      {200, "data: {\"error\": {\"message\": \"lost\"}}\n\n", "server_error", "lost"},
      {200, "data: nonsense\n\n", "protocol", "not valid JSON"},
      {200, "data: {\"choices\": [{\"text\": \"a\"}]}\n\n", "cut_short", "ended before"},
      {200, "", "cut_short", "ended before"},
  };
  for (const auto& wrong : cases) {
    const Url url = start(answer_with(wrong.status, wrong.body));
    const LoadOutcome outcome = run(plan(drawn(4, 2), 1), options_for(url));
    ASSERT_EQ(outcome.records.size(), 1u);
    EXPECT_EQ(outcome.records[0].error, wrong.kind);
    EXPECT_THAT(outcome.records[0].status.message(), HasSubstr(wrong.message));
    EXPECT_FALSE(outcome.records[0].completed());
  }
}

TEST_F(FailingServer, NobodyListening) {
  Url url = start(answer_with(200, ""));
  server_.reset();
  const LoadOutcome outcome = run(plan(drawn(4, 2), 1), options_for(url));
  EXPECT_EQ(outcome.records[0].error, "connection");
}

// Answers every request with one token and keeps what was asked.
class RecordingServer : public FailingServer {
 protected:
  Url start_recording() {
    return start([this](const HttpRequest& http, HttpReply& reply) -> asio::awaitable<void> {
      {
        const std::lock_guard lock(mutex_);
        bodies_.insert(http.body);
        key_ = http.headers.find("Authorization");
      }
      HttpResponse response;
      response.body =
          "data: {\"choices\": [{\"text\": \"a\", \"token_ids\": [1]}]}\n\ndata: [DONE]\n\n";
      co_await reply.send(response);
    });
  }
  std::multiset<std::string> take_bodies() {
    const std::lock_guard lock(mutex_);
    return std::exchange(bodies_, {});
  }
  std::string key() {
    const std::lock_guard lock(mutex_);
    return key_;
  }

 private:
  std::mutex mutex_;
  std::multiset<std::string> bodies_;
  std::string key_;
};

TEST_F(RecordingServer, WhatIsSentDoesNotDependOnTiming) {
  DrawnWorkload options = drawn(6, 1);
  options.rounds = 2;
  const Workload workload = plan(options, 12);
  LoadOptions load = options_for(start_recording());
  run(workload, load);
  const std::multiset<std::string> at_once = take_bodies();
  load.open_loop = false;
  load.concurrency = 2;
  run(workload, load);
  EXPECT_EQ(at_once.size(), 12u);
  EXPECT_EQ(take_bodies(), at_once);
}

TEST_F(RecordingServer, WarmUpIsSentAndNotRecorded) {
  LoadOptions load = options_for(start_recording());
  const Workload workload = plan(drawn(4, 2), 3);
  run(workload, load);
  const std::multiset<std::string> without = take_bodies();
  load.warmup = 5;
  EXPECT_EQ(run(workload, load).records.size(), 3u);
  const std::multiset<std::string> with = take_bodies();
  EXPECT_EQ(with.size(), 8u);
  for (const std::string& body : without) EXPECT_EQ(with.count(body), 1u) << "tokens of its own";
}

TEST_F(RecordingServer, TheKeyIsSent) {
  LoadOptions load = options_for(start_recording());
  load.api_key = "secret";
  run(plan(drawn(4, 2), 1), load);
  EXPECT_EQ(key(), "Bearer secret");
}

TEST(RunLoad, RefusesWhatMakesNoSense) {
  LoadOptions options;
  EXPECT_THAT(run_load({}, options).status().message(), HasSubstr("vocabulary"));
  options.vocabulary = 5;
  options.open_loop = false;
  EXPECT_THAT(run_load({}, options).status().message(), HasSubstr("number of clients"));
}

TEST(RunLoad, OfNothingIsOver) {
  LoadOptions options;
  options.vocabulary = 5;
  options.warmup = 2;
  EXPECT_TRUE(run({}, options).records.empty());
}

}  // namespace
}  // namespace kvlane
