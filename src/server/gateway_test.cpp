// The gateway in front of workers over fake engines, and of workers that fail in every way.
// SPDX-License-Identifier: Apache-2.0
#include "server/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>

#include "server/gateway_fixture.h"
#include "server/metrics_fixture.h"
#include "server/openai_response.h"
#include "server/sse.h"

namespace kvlane {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kStreamed = R"({"prompt": "A", "max_tokens": 3, "stream": true})";
constexpr const char* kWhole = R"({"prompt": "A", "max_tokens": 3})";

std::string text_of(const std::string& stream) {
  SseSplitter splitter;
  splitter.add(stream);
  std::string text;
  while (const auto event = splitter.next()) {
    if (*event == kDoneEvent) continue;
    const json object = json::parse(event->substr(6));
    for (const json& choice : object.value("choices", json::array())) {
      text += choice["text"].get<std::string>();
    }
  }
  return text;
}

TEST_F(GatewayTest, AnswersThroughBothWorkers) {
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {decode.url});
  const RawResponse whole = complete(kWhole, "X-Request-Id: my-id\r\n");
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_THAT(whole.head, HasSubstr("X-Request-Id: my-id"));
  const json answer = json::parse(whole.body);
  EXPECT_EQ(answer["id"], "cmpl-my-id");
  EXPECT_EQ(answer["choices"][0]["text"], "65 66 67 ");
  ASSERT_EQ(prefill.engine->requests().size(), 1U);
  EXPECT_EQ(prefill.engine->requests()[0].max_tokens, 1);
  EXPECT_EQ(decode.engine->requests()[0].max_tokens, 3);
  EXPECT_EQ(prefill.engine->last_peer(), (Address{"127.0.0.1", 4321}));

  const RawResponse streamed = complete(kStreamed);
  ASSERT_EQ(streamed.status, 200);
  EXPECT_TRUE(streamed.whole);
  EXPECT_EQ(text_of(streamed.body), "65 66 67 ");
  EXPECT_TRUE(streamed.body.ends_with(kDoneEvent));

  const RawResponse chat = raw_exchange(
      port_, "POST", "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "A"}], "max_completion_tokens": 2})");
  EXPECT_EQ(json::parse(chat.body)["choices"][0]["message"]["content"], "65 66 ");
  EXPECT_TRUE(prefill.engine->aborted_requests().empty());
  EXPECT_TRUE(decode.engine->aborted_requests().empty());
}

TEST_F(GatewayTest, AccountsAddUpToItsOwnTime) {
  FakeEnginePlan slow;
  slow.prefill_delay = std::chrono::milliseconds(100);
  const Running prefill = start_worker(Role::kPrefill, slow);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {decode.url});
  const auto check = [](const json& extension, double measured) {
    const json& account = extension["account"];
    const double total = account["total"];
    EXPECT_NEAR(account_from_json(account).total(), total, 1e-9);
    EXPECT_GE(total, 0.1);
    EXPECT_LE(total, measured);
    EXPECT_NEAR(account["other"].get<double>(), total - 0.003, 1e-9);
    EXPECT_EQ(extension["kv"]["shipped_bytes"], 150);
  };
  TimePoint begin = SteadyClock::now();
  const RawResponse whole = complete(kWhole);
  check(json::parse(whole.body)["kvlane"], seconds_since(begin));

  begin = SteadyClock::now();
  const RawResponse streamed = complete(
      R"({"prompt": "A", "max_tokens": 3, "stream": true,
          "stream_options": {"include_usage": true}})");
  const double measured = seconds_since(begin);
  SseSplitter splitter;
  splitter.add(streamed.body);
  json last;
  while (const auto event = splitter.next()) {
    if (*event != kDoneEvent) last = json::parse(event->substr(6));
  }
  EXPECT_EQ(last["usage"]["completion_tokens"], 3);
  check(last["kvlane"], measured);
}

TEST_F(GatewayTest, ManyRequestsAtOnce) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(1);
  plan.prefill_delay = std::chrono::milliseconds(3);
  const Running p1 = start_worker(Role::kPrefill, plan);
  const Running p2 = start_worker(Role::kPrefill, plan);
  const Running d1 = start_worker(Role::kDecode, plan);
  const Running d2 = start_worker(Role::kDecode, plan);
  start({p1.url, p2.url}, {d1.url, d2.url});
  EXPECT_TRUE(eventually([&] {
    return raw_exchange(port_, "GET", "/health").body.find("unknown") == std::string::npos;
  }));
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (int i = 0; i < 40; ++i) {
    const std::string body =
        R"({"prompt": [)" + std::to_string(i * 10) + R"(], "max_tokens": 5, "stream": true})";
    clients.push_back(std::make_unique<RawHttp>(port_));
    clients.back()->send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  for (int i = 0; i < 40; ++i) {
    std::string expected;
    for (int token = 0; token < 5; ++token) expected += std::to_string(i * 10 + token) + " ";
    EXPECT_EQ(text_of(clients[static_cast<std::size_t>(i)]->read_response().body), expected);
  }
  for (const Running* worker : {&p1, &p2, &d1, &d2}) {
    EXPECT_GT(worker->engine->requests().size(), 5U) << "the load is spread";
  }
}

TEST_F(GatewayTest, RefusesBadRequestsItself) {
  start({nowhere()}, {nowhere()});
  EXPECT_EQ(complete("{").status, 400);
  EXPECT_EQ(complete(R"({"prompt": "A", "echo": true})").status, 400);
  EXPECT_EQ(complete(R"({"prompt": "A", "bogus": 2})").status, 400);
  EXPECT_THAT(complete(R"({"prompt": "A", "kv_transfer_params": {"do_remote_decode": true}})").body,
              HasSubstr("chooses 'kv_transfer_params' itself"));
  EXPECT_EQ(raw_exchange(port_, "POST", "/kvlane/v1/reserve", "{}").status, 404);
}

TEST_F(GatewayTest, PassesTheWorkersRefusalsOn) {
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {decode.url});
  const RawResponse unknown = complete(R"({"prompt": "A", "model": "other"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(json::parse(unknown.body)["error"]["code"], "model_not_found");
  const RawResponse longer = complete(R"({"prompt": ")" + std::string(500, 'x') + "\"}");
  EXPECT_EQ(longer.status, 400);
  EXPECT_THAT(longer.body, HasSubstr("maximum context length is 100 tokens"));
  EXPECT_TRUE(prefill.engine->requests().empty());
}

TEST_F(GatewayTest, NobodyThereIsOneSentence) {
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {nowhere()});
  const RawResponse no_decode = complete(kStreamed);
  EXPECT_EQ(no_decode.status, 503);
  EXPECT_THAT(no_decode.body, HasSubstr("The decode worker http://127.0.0.1:"));
  EXPECT_THAT(no_decode.body, HasSubstr("refused"));
  EXPECT_THAT(no_decode.head, HasSubstr("Retry-After"));
  EXPECT_EQ(raw_exchange(port_, "GET", "/v1/models").status, 503);
  server_.reset();
  start({nowhere()}, {decode.url});
  const RawResponse no_prefill = complete(kWhole);
  EXPECT_EQ(no_prefill.status, 503);
  EXPECT_THAT(no_prefill.body, HasSubstr("The prefill worker http://127.0.0.1:"));
  EXPECT_TRUE(eventually([&] { return decode.engine->aborted_requests().size() == 1; }))
      << "the reservation is given back";
}

TEST_F(GatewayTest, DeadWorkersAreReplaced) {
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  probe_interval_ = Seconds(3600);  // the gateway has to find out by itself
  start({nowhere(), prefill.url}, {nowhere(), decode.url});
  for (int i = 0; i < 6; ++i) {
    const RawResponse response = complete(i % 2 == 0 ? kWhole : kStreamed);
    EXPECT_EQ(response.status, 200) << response.body;
  }
}

TEST_F(GatewayTest, APrefillWorkerThatDiesHalfWayIsReplaced) {
  const auto dying =
      start_impostor([](const HttpRequest&, HttpReply& reply) -> asio::awaitable<void> {
        const HttpResponse head;
        co_await reply.start_stream(head);  // and then nothing: the connection is closed
      });
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({url_of(*dying), prefill.url}, {decode.url});
  for (int i = 0; i < 4; ++i) {
    const RawResponse response = complete(kStreamed);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(text_of(response.body), "65 66 67 ");
  }
}

TEST_F(GatewayTest, APrefillThatFailsCostsARetryOrItsError) {
  FakeEnginePlan broken;
  broken.fail_after = 0;
  broken.failure = unavailable("the peer went away");
  const Running bad = start_worker(Role::kPrefill, broken);
  const Running good = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({bad.url, good.url}, {decode.url});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(complete(kWhole).status, 200);
  server_.reset();
  start({bad.url}, {decode.url});
  const RawResponse response = complete(kWhole);
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, HasSubstr("the peer went away"));
}

TEST_F(GatewayTest, FullWorkersAreTriedThenTold) {
  FakeEnginePlan full;
  full.refuse = exhausted("the queue of 256 requests is full");
  const Running prefill = start_worker(Role::kPrefill);
  const Running busy = start_worker(Role::kDecode, full);
  const Running free = start_worker(Role::kDecode);
  start({prefill.url}, {busy.url, free.url});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(complete(kWhole).status, 200);
  server_.reset();
  start({prefill.url}, {busy.url});
  const RawResponse response = complete(kWhole);
  EXPECT_EQ(response.status, 429);
  EXPECT_THAT(response.head, HasSubstr("Retry-After: 1"));
  EXPECT_THAT(response.body, HasSubstr("queue of 256"));
}

TEST_F(GatewayTest, RequestsWaitInLineForRoom) {
  const Pair workers = start_narrow(2, std::chrono::milliseconds(3));
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (int i = 0; i < 12; ++i) clients.push_back(post(kWhole));
  clients[3]->close();  // one that leaves the line holds nobody up
  double queue_longest = 0;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (i == 3) continue;
    const RawResponse response = clients[i]->read_response();
    ASSERT_EQ(response.status, 200) << response.body;
    const json account = json::parse(response.body)["kvlane"]["account"];
    queue_longest = std::max(queue_longest, account["queue"].get<double>());
    EXPECT_NEAR(account_from_json(account).total(), account["total"].get<double>(), 1e-9);
  }
  EXPECT_GT(queue_longest, 0.02) << "waiting in line is told as queue";
}

TEST_F(GatewayTest, TheLineHasALimit) {
  FakeEnginePlan full;
  full.running_max = 0;
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode, full);
  patience_ = Seconds(2);
  waiting_max_ = 1;
  start({prefill.url}, {decode.url});
  const auto waiting = post(kWhole);
  EXPECT_TRUE(eventually([&] { return decode.engine->refused() > 2; }));
  const TimePoint begin = SteadyClock::now();
  const RawResponse refused = complete(kWhole);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("The line of 1 who wait for a worker is full"));
  EXPECT_LT(seconds_since(begin), 1);
  EXPECT_EQ(waiting->read_response().status, 429) << "patience ends";
}

// Whoever finds the line full is refused, even at the moment when room comes.
TEST_F(GatewayTest, NobodyOvertakesAFullLine) {
  waiting_max_ = 1;
  const Pair workers = start_narrow(1, std::chrono::milliseconds(200));
  const FakeEngine& decode = *workers.decode.engine;
  const auto running = post(kWhole);
  EXPECT_TRUE(eventually([&] { return !decode.idle(); }));
  const auto waiting = post(kWhole);
  EXPECT_TRUE(eventually([&] { return decode.refused() > 1; }));
  std::atomic<bool> over = false;
  std::atomic<int> overtook = 0;
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      while (!over) overtook += complete(kWhole).status == 200 && !over;
    });
  }
  EXPECT_EQ(waiting->read_response().status, 200);
  over = true;
  EXPECT_EQ(overtook, 0);
  for (std::thread& other : others) other.join();
  EXPECT_EQ(running->read_response().status, 200);
}

// Room to decode is no reason to ask a full prefill worker again and again, for each that waits.
TEST_F(GatewayTest, AFullPrefillWorkerIsAskedSeldom) {
  FakeEnginePlan full;
  full.refuse = exhausted("the queue is full");
  const Running prefill = start_worker(Role::kPrefill, full);
  const Running decode = start_worker(Role::kDecode);
  patience_ = Seconds(1);
  start({prefill.url}, {decode.url});
  constexpr int kClients = 16;
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(post(kWhole));
  for (const auto& client : clients) EXPECT_EQ(client->read_response().status, 429);
  // Each client's first try and last, and every 20 ms one and those that stood behind it until the
  // prefill worker had answered: some 120. Without a pause it was 600.
  EXPECT_TRUE(eventually([&] { return decode.engine->idle(); }));
  EXPECT_LE(decode.engine->aborted_requests().size(), 5U * 50 + 2 * kClients);
}

TEST_F(GatewayTest, ADecodeFailureInTheMiddleIsAnEvent) {
  FakeEnginePlan broken;
  broken.fail_after = 2;
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode, broken);
  start({prefill.url}, {decode.url});
  const RawResponse response = complete(kStreamed);
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.whole);
  EXPECT_THAT(response.body, HasSubstr("checksum"));
  EXPECT_THAT(response.body, Not(HasSubstr("[DONE]")));
  EXPECT_EQ(complete(kWhole).status, 502);
}

TEST_F(GatewayTest, ADecodeWorkerThatDiesInTheMiddleIsAnEvent) {
  std::atomic<int> attached = 0;
  const auto dying = start_impostor(
      [&attached](const HttpRequest& request, HttpReply& reply) -> asio::awaitable<void> {
        if (request.path != "/kvlane/v1/attach") {
          HttpResponse reserved;
          reserved.body = R"({"host": "127.0.0.1", "port": 1})";
          co_await reply.send(reserved);
          co_return;
        }
        ++attached;
        HttpResponse head;
        head.content_type = kEventStreamType;
        head.body = "data: {\"choices\":[{\"text\":\"65 \"}]}\n\ndata: {\"choi";
        co_await reply.start_stream(head);  // and then nothing: the connection is closed
      });
  const Running prefill = start_worker(Role::kPrefill);
  start({prefill.url}, {url_of(*dying)});
  const RawResponse response = complete(kStreamed);
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.whole) << "the gateway ends its own body properly";
  EXPECT_THAT(response.body, HasSubstr("failed in the middle of the answer"));
  EXPECT_THAT(response.body, HasSubstr("\"type\":\"server_error\""));
  EXPECT_THAT(response.body, Not(HasSubstr("[DONE]")));
  EXPECT_THAT(response.body, Not(HasSubstr("{\"choi\n"))) << "no half event";
  EXPECT_EQ(attached, 1) << "no second attempt behind the first byte";

  const RawResponse whole = complete(kWhole);
  EXPECT_EQ(whole.status, 503) << whole.body;
}

// As when its process is stopped, or its cable is cut: connections stay open, and nothing comes.
TEST_F(GatewayTest, AWorkerThatFallsSilentIsGivenUp) {
  std::atomic<bool> silent = false;
  const auto hanging = start_impostor(
      [&silent, this](const HttpRequest& request, HttpReply& reply) -> asio::awaitable<void> {
        HttpResponse response;
        response.body = R"({"load": {}, "host": "127.0.0.1", "port": 1})";
        if (request.path == "/kvlane/v1/attach") {
          response.content_type = kEventStreamType;
          response.body = "data: {\"choices\":[{\"text\":\"65 \"}]}\n\n";
          co_await reply.start_stream(response);
          silent = true;
        }
        if (silent) {
          asio::steady_timer never(loop_.executor(), std::chrono::hours(1));
          co_await never.async_wait(asio::use_awaitable);
        }
        co_await reply.send(response);
      });
  const Running prefill = start_worker(Role::kPrefill);
  probe_timeout_ = Seconds(0.1);
  start({prefill.url}, {url_of(*hanging)});
  const RawResponse streamed = complete(kStreamed);
  EXPECT_TRUE(streamed.whole);
  EXPECT_THAT(streamed.body, HasSubstr("in the middle of the answer: it does not answer any more"));
  EXPECT_THAT(streamed.body, Not(HasSubstr("[DONE]")));
}

// An answer that is not streamed has its head when it is complete: that may take longer than all
// else that workers are asked.
TEST_F(GatewayTest, AnAnswerMayTakeAsLongAsItTakes) {
  calls_.head_timeout = Seconds(0.5);
  const Pair workers = start_narrow(1, std::chrono::milliseconds(400));
  EXPECT_EQ(complete(kWhole).status, 200);
}

// Well, as far as probes see, but with nothing to say about its model: another one answers.
TEST_F(GatewayTest, QuestionsAboutTheModelPassASilentWorkerOver) {
  calls_.head_timeout = Seconds(0.3);
  const auto silent =
      start_impostor([this](const HttpRequest& request, HttpReply& reply) -> asio::awaitable<void> {
        if (request.path == "/health") {
          HttpResponse response;
          response.body = R"({"load": {}})";
          co_await reply.send(response);
          co_return;
        }
        asio::steady_timer timer(loop_.executor());
        timer.expires_after(std::chrono::hours(1));
        co_await timer.async_wait(asio::use_awaitable);
      });
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {url_of(*silent), decode.url});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(raw_exchange(port_, "GET", "/v1/models").status, 200);
}

TEST_F(GatewayTest, ServersThatAreNoWorkersAreNamed) {
  const auto web =
      start_impostor([](const HttpRequest&, HttpReply& reply) -> asio::awaitable<void> {
        HttpResponse response;
        response.body = "<html>hello</html>";
        co_await reply.send(response);
      });
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {url_of(*web)});
  const RawResponse response = complete(kWhole);
  EXPECT_EQ(response.status, 502);
  EXPECT_THAT(response.body, HasSubstr("names no data plane"));
  EXPECT_TRUE(eventually([&] {
    return raw_exchange(port_, "GET", "/health").body.find("not a kvlane worker's") !=
           std::string::npos;
  }));
  server_.reset();
  start({prefill.url}, {prefill.url});
  const RawResponse swapped = complete(kWhole);
  EXPECT_EQ(swapped.status, 502);
  EXPECT_THAT(swapped.body, HasSubstr("it is no such worker"));
}

TEST_F(GatewayTest, ALeavingClientAbortsBothWorkers) {
  FakeEnginePlan slow;
  slow.prefill_delay = std::chrono::seconds(20);
  const Running prefill = start_worker(Role::kPrefill, slow);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {decode.url});
  RawHttp client(port_);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(std::string_view(kStreamed).size()) + "\r\n\r\n" + kStreamed);
  EXPECT_TRUE(eventually([&] { return prefill.engine->requests().size() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return prefill.engine->aborted_requests().size() == 1; }));
  // By abortion, or because the other worker's came first and broke the transfer.
  EXPECT_TRUE(eventually([&] { return decode.engine->idle(); }));
  const json health = json::parse(raw_exchange(port_, "GET", "/health").body);
  EXPECT_EQ(health["prefill"][0]["status"], "ok") << "a leaving client is not the worker's failure";
}

TEST_F(GatewayTest, ALeavingClientAbortsARunningStream) {
  FakeEnginePlan slow;
  slow.token_delay = std::chrono::milliseconds(20);
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode, slow);
  start({prefill.url}, {decode.url});
  RawHttp client(port_);
  const std::string body = R"({"prompt": "A", "max_tokens": 90, "stream": true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_THAT(client.take_through("\n\n"), HasSubstr("65 "));
  client.close();
  EXPECT_TRUE(eventually([&] { return decode.engine->aborted_requests().size() == 1; }));
}

TEST_F(GatewayTest, ReportsItsWorkers) {
  const Running prefill = start_worker(Role::kPrefill);
  Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {decode.url});
  EXPECT_TRUE(eventually([&] { return raw_exchange(port_, "GET", "/health").status == 200; }));
  const json health = json::parse(raw_exchange(port_, "GET", "/health").body);
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["decode"][0]["url"], to_string(decode.url));
  EXPECT_EQ(health["decode"][0]["queued_tokens"], 34);
  const json models = json::parse(raw_exchange(port_, "GET", "/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  const RawResponse tokens = raw_exchange(port_, "POST", "/tokenize", R"({"prompt": "AB"})");
  EXPECT_EQ(json::parse(tokens.body)["tokens"], (json{65, 66}));
  const RawResponse text = raw_exchange(port_, "POST", "/detokenize", R"({"tokens": [65]})");
  EXPECT_EQ(json::parse(text.body)["prompt"], "65 ");
  const RawResponse refused = raw_exchange(port_, "POST", "/detokenize", "");
  EXPECT_EQ(refused.status, 400) << "the worker's word, passed on";
  EXPECT_THAT(refused.body, HasSubstr("not valid JSON"));
  decode.service.reset();
  EXPECT_TRUE(eventually([&] { return raw_exchange(port_, "GET", "/health").status == 503; }));
  EXPECT_THAT(raw_exchange(port_, "GET", "/health").body, HasSubstr("refused"));
}

TEST_F(GatewayTest, RelaysSeveralAnswersAndTheirLogprobs) {
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  start({prefill.url}, {decode.url});
  const std::string fields = R"({"prompt": "A", "max_tokens": 3, "n": 2, "logprobs": 1)";
  const json whole = json::parse(complete(fields + "}").body);
  ASSERT_EQ(whole["choices"].size(), 2U);
  EXPECT_EQ(whole["choices"][1]["text"], "165 166 167 ");
  EXPECT_EQ(whole["choices"][1]["logprobs"]["tokens"], (json{"165 ", "166 ", "167 "}));
  EXPECT_EQ(prefill.engine->requests()[0].n, 2) << "it makes both first tokens";
  const std::string streamed = complete(fields + R"(, "stream": true})").body;
  EXPECT_THAT(streamed, HasSubstr("\"index\":1"));
  EXPECT_THAT(streamed, testing::EndsWith(kDoneEvent));
}

TEST_F(GatewayTest, CountsWhatItDoes) {
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode);
  const Url gone = nowhere();
  start({prefill.url}, {gone, decode.url});
  EXPECT_EQ(complete(R"({"prompt": "A", "max_tokens": 3, "stream": true})").status, 200);
  EXPECT_EQ(complete(R"({"prompt": "A", "max_tokens": 3, "stream": true})").status, 200);
  EXPECT_EQ(complete(R"({"prompt": "A", "max_tokens": 3})").status, 200);
  EXPECT_EQ(complete(R"({"prompt": "A", "bogus": 3})").status, 400);
  const std::string metrics = raw_exchange(port_, "GET", "/metrics").body;
  EXPECT_EQ(sample(metrics, "kvlane_gateway_requests_total", {"status=\"200\""}), 3);
  EXPECT_EQ(sample(metrics, "kvlane_gateway_requests_total", {"status=\"400\""}), 1);
  EXPECT_EQ(sample(metrics, "kvlane_gateway_request_seconds_count"), 3);
  EXPECT_EQ(sample(metrics, "kvlane_gateway_dispatch_seconds_count"), 3);
  EXPECT_EQ(sample(metrics, "kvlane_gateway_time_to_first_token_seconds_count"), 2);
  EXPECT_GE(sample(metrics, "kvlane_gateway_relay_seconds_count"), 2);
  EXPECT_LE(sample(metrics, "kvlane_gateway_retries_total"), 1);
  EXPECT_EQ(sample(metrics, "kvlane_gateway_requests_waiting"), 0);
  const std::string url = to_string(decode.url);
  EXPECT_EQ(sample(metrics, "kvlane_gateway_worker_in_flight", {"role=\"decode\"", url}), 0);
  EXPECT_TRUE(eventually([&] {
    const std::string now = raw_exchange(port_, "GET", "/metrics").body;
    return sample(now, "kvlane_gateway_worker_up", {url}) == 1 &&
           sample(now, "kvlane_gateway_worker_up", {to_string(gone)}) == 0;
  }));
}

TEST_F(GatewayTest, AClientThatLeavesIsCounted) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(20);
  const Running prefill = start_worker(Role::kPrefill);
  const Running decode = start_worker(Role::kDecode, plan);
  start({prefill.url}, {decode.url});
  RawHttp client(port_);
  const std::string body = R"({"prompt": "A", "max_tokens": 90, "stream": true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.take_through("\n\n");
  client.close();
  EXPECT_TRUE(eventually([&] {
    const std::string metrics = raw_exchange(port_, "GET", "/metrics").body;
    return sample(metrics, "kvlane_gateway_requests_total", {"status=\"none\""}) == 1;
  }));
}

TEST_F(GatewayTest, UsesItsKeyWithTheWorkers) {
  const Running prefill = start_worker(Role::kPrefill, {}, "secret");
  const Running decode = start_worker(Role::kDecode, {}, "secret");
  start({prefill.url}, {decode.url}, "secret");
  EXPECT_EQ(complete(kWhole).status, 401);
  EXPECT_EQ(complete(kWhole, "Authorization: Bearer secret\r\n").status, 200);
  server_.reset();
  start({prefill.url}, {decode.url}, "other");
  EXPECT_EQ(complete(kWhole, "Authorization: Bearer other\r\n").status, 502);
}

TEST(SseSplitterTest, CutsAtBlankLinesWhereverPiecesEnd) {
  const std::string stream = "data: a\n\ndata: b\nid: 1\n\n: comment\n\n";
  for (std::size_t size = 1; size <= stream.size(); ++size) {
    SseSplitter splitter;
    std::vector<std::string> events;
    for (std::size_t at = 0; at < stream.size(); at += size) {
      splitter.add(stream.substr(at, size));
      while (auto event = splitter.next()) events.push_back(std::move(*event));
    }
    EXPECT_THAT(events, testing::ElementsAre("data: a\n\n", "data: b\nid: 1\n\n", ": comment\n\n"));
  }
}

}  // namespace
}  // namespace kvlane
