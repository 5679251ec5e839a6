// A worker's routes over a fake engine: answers, streams, errors, roles, both transfer flows.
// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/metrics_fixture.h"
#include "server/worker_fixture.h"

namespace kvlane {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<json> parsed_events(const std::string& stream, bool done = true) {
  std::vector<json> events;
  for (const std::string& event : events_of(stream, done)) events.push_back(json::parse(event));
  return events;
}

TEST_F(WorkerTest, CompletesAText) {
  const Running worker = start();
  const RawResponse response = complete(
      worker, R"({"model": "tiny", "prompt": "A", "max_tokens": 3, "return_token_ids": true})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_THAT(answer["id"].get<std::string>(), HasSubstr("cmpl-"));
  EXPECT_EQ(answer["choices"].size(), 1U);
  EXPECT_EQ(answer["choices"][0]["text"], "65 66 67 ");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["token_ids"], (json{65, 66, 67}));
  EXPECT_EQ(answer["usage"], (json{{"prompt_tokens", 1},
                                   {"completion_tokens", 3},
                                   {"total_tokens", 4},
                                   {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
  EXPECT_EQ(answer["kvlane"]["kv"],
            (json{{"raw_bytes", 200}, {"shipped_bytes", 150}, {"codec", "splitzip"}}));
  const json& account = answer["kvlane"]["account"];
  EXPECT_DOUBLE_EQ(account["total"].get<double>(), account["prefill"].get<double>() +
                                                       account["decode"].get<double>() +
                                                       account["other"].get<double>());
}

TEST_F(WorkerTest, StreamsAText) {
  const Running worker = start();
  const RawResponse response =
      complete(worker, R"({"prompt": "A", "max_tokens": 3, "stream": true})");
  ASSERT_EQ(response.status, 200);
  EXPECT_TRUE(response.whole);
  EXPECT_THAT(response.head, HasSubstr("Content-Type: text/event-stream"));
  std::string text;
  const std::vector<json> events = parsed_events(response.body);
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "text_completion");
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_FALSE(event.contains("usage"));
    text += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(event.contains("kvlane"), &event == &events.back());
    EXPECT_EQ(event["choices"][0]["finish_reason"].is_null(), &event != &events.back());
  }
  EXPECT_EQ(text, "65 66 67 ");
}

TEST_F(WorkerTest, StreamsAChatWithUsage) {
  const Running worker = start();
  const RawResponse response = chat(worker, R"({"messages": [{"role": "user", "content": "A"}],
      "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_EQ(response.status, 200) << response.body;
  const std::vector<json> events = parsed_events(response.body);
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", ""}}));
  std::string text;
  for (std::size_t i = 1; i + 1 < events.size(); ++i) {
    EXPECT_FALSE(events[i]["choices"][0]["delta"].contains("role"));
    text += events[i]["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "65 66 ");
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_FALSE(events[events.size() - 2].contains("kvlane"));
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 2);
  EXPECT_TRUE(events.back().contains("kvlane"));
}

TEST_F(WorkerTest, AnswersAChat) {
  const Running worker = start();
  const json answer = json::parse(
      chat(worker, R"({"messages": [{"role": "user", "content": "A"}], "max_tokens": 1})").body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"], (json{{"role", "assistant"}, {"content", "65 "}}));
}

TEST_F(WorkerTest, TellsAboutItself) {
  const Running worker = start(Role::kDecode);
  const json health = json::parse(raw_exchange(worker.port, "GET", "/health").body);
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["role"], "decode");
  EXPECT_EQ(health["load"]["queued_tokens"], 34);
  EXPECT_EQ(health["data_plane"], "127.0.0.1:4321");
  const json models = json::parse(raw_exchange(worker.port, "GET", "/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 100);
  EXPECT_EQ(models["data"][0]["vocab_size"], 1000);
  const json version = json::parse(raw_exchange(worker.port, "GET", "/version").body);
  EXPECT_EQ(version["version"], KVLANE_VERSION);
}

TEST_F(WorkerTest, AsksForItsKeyExceptForHealthAndVersion) {
  const Running worker = start(Role::kBoth, {}, "secret");
  EXPECT_EQ(raw_exchange(worker.port, "GET", "/health").status, 200);
  EXPECT_EQ(raw_exchange(worker.port, "GET", "/version").status, 200);
  EXPECT_EQ(raw_exchange(worker.port, "GET", "/v1/models").status, 401);
  EXPECT_EQ(complete(worker, R"({"prompt": "A"})").status, 401);
}

TEST_F(WorkerTest, RefusesBadRequestsInOpenAiForm) {
  const Running worker = start();
  const RawResponse unknown = complete(worker, R"({"prompt": "A", "model": "other"})");
  EXPECT_EQ(unknown.status, 404);
  const json error = json::parse(unknown.body)["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("`other` does not exist"));
  EXPECT_EQ(complete(worker, "{").status, 400);
  EXPECT_EQ(complete(worker, "\xff").status, 400);
  EXPECT_EQ(complete(worker, R"({"prompt": "A", "echo": true})").status, 400);
  EXPECT_EQ(complete(worker, R"({"prompt": ")" + std::string(500, 'x') + "\"}").status, 400);
  EXPECT_EQ(complete(worker, R"({"prompt": "A", "max_tokens": 1})").status, 200) << "still there";
}

TEST_F(WorkerTest, MapsEngineErrorsToHttp) {
  struct Case {
    Status status;
    int http;
    const char* type;
  };
  for (const Case& c :
       {Case{invalid_argument("a"), 400, "invalid_request_error"},
        Case{unsupported("a"), 400, "invalid_request_error"},
        Case{not_found("a"), 404, "invalid_request_error"},
        Case{exhausted("a"), 429, "rate_limit_error"},
        Case{internal_error("a"), 500, "server_error"}, Case{corrupt("a"), 502, "server_error"},
        Case{unavailable("a"), 503, "server_error"}, Case{aborted("a"), 503, "server_error"},
        Case{timed_out("a"), 504, "server_error"}}) {
    FakeEnginePlan plan;
    plan.refuse = c.status;
    const Running worker = start(Role::kBoth, plan);
    const RawResponse response = complete(worker, R"({"prompt": "A"})");
    EXPECT_EQ(response.status, c.http);
    EXPECT_EQ(json::parse(response.body)["error"]["type"], c.type);
    EXPECT_EQ(response.head.find("Retry-After") != std::string::npos,
              c.http == 429 || c.http == 503);
  }
}

TEST_F(WorkerTest, FailuresBeforeTheFirstTokenHaveAStatusLaterOnesAnEvent) {
  FakeEnginePlan plan;
  plan.fail_after = 0;
  const Running early = start(Role::kBoth, plan);
  EXPECT_EQ(complete(early, R"({"prompt": "A", "stream": true})").status, 502);
  EXPECT_EQ(complete(early, R"({"prompt": "A"})").status, 502);
  plan.fail_after = 2;
  const Running late = start(Role::kBoth, plan);
  EXPECT_EQ(complete(late, R"({"prompt": "A"})").status, 502);
  const RawResponse streamed = complete(late, R"({"prompt": "A", "stream": true})");
  EXPECT_EQ(streamed.status, 200);
  const std::vector<json> events = parsed_events(streamed.body, false);
  EXPECT_THAT(events.back()["error"]["message"].get<std::string>(), HasSubstr("checksum"));
  EXPECT_EQ(events.back()["error"]["code"], "corrupt");
}

TEST_F(WorkerTest, ALeavingClientAbortsItsRequest) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(50);
  const Running worker = start(Role::kBoth, plan);
  for (const char* stream : {"true", "false"}) {
    const std::size_t before = worker.engine->aborted_requests().size();
    RawHttp client(worker.port);
    const std::string body =
        std::string(R"({"prompt": "A", "max_tokens": 90, "stream": )") + stream + "}";
    client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    if (std::string_view(stream) == "true") client.take_through("\n\n");
    EXPECT_TRUE(eventually([&] { return worker.engine->requests().size() > before; }));
    client.close();
    EXPECT_TRUE(eventually([&] { return worker.engine->aborted_requests().size() == before + 1; }));
  }
}

TEST_F(WorkerTest, LongRequestsAreReadOffTheLoop) {
  const Running worker = start();
  // Far beyond what is read on the loop's thread; refused with the number of its tokens.
  const std::string longer(100000, 'x');
  const RawResponse refused = complete(worker, R"({"prompt": ")" + longer + "\"}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("100000 input tokens"));
  std::string ids = "65";
  for (int i = 0; i < 50; ++i) ids += "," + std::string(1000, ' ') + "66";
  const RawResponse answer = complete(worker, R"({"prompt": [)" + ids + R"(], "max_tokens": 1})");
  EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"], "65 ");
}

TEST_F(WorkerTest, FinishedRequestsAreNotAborted) {
  const Running worker = start();
  EXPECT_EQ(complete(worker, R"({"prompt": "A"})").status, 200);
  EXPECT_EQ(complete(worker, R"({"prompt": "A", "stream": true})").status, 200);
  EXPECT_TRUE(worker.engine->aborted_requests().empty());
}

TEST_F(WorkerTest, ManyRequestsAtOnceGetTheirOwnAnswers) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(1);
  const Running worker = start(Role::kBoth, plan);
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (int i = 0; i < 50; ++i) {
    const std::string body = R"({"prompt": [)" + std::to_string(i * 10) +
                             R"(], "max_tokens": 5, "stream": )" +
                             (i % 2 == 0 ? "true}" : "false}");
    clients.push_back(std::make_unique<RawHttp>(worker.port));
    clients.back()->send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  for (int i = 0; i < 50; ++i) {
    const RawResponse response = clients[static_cast<std::size_t>(i)]->read_response();
    std::string text;
    if (i % 2 == 0) {
      for (const json& event : parsed_events(response.body)) text += event["choices"][0]["text"];
    } else {
      text = json::parse(response.body)["choices"][0]["text"];
    }
    std::string expected;
    for (int token = 0; token < 5; ++token) expected += std::to_string(i * 10 + token) + " ";
    EXPECT_EQ(text, expected);
  }
}

TEST_F(WorkerTest, RolesTakeOnlyTheirRequests) {
  const Running both = start();
  const Running prefill = start(Role::kPrefill);
  const Running decode = start(Role::kDecode);
  const std::string plain = R"({"prompt": "A"})";
  const std::string park = R"({"prompt": "A", "kv_transfer_params": {"do_remote_decode": true}})";
  EXPECT_EQ(complete(both, plain).status, 200);
  EXPECT_THAT(complete(both, park).body, HasSubstr("takes no 'kv_transfer_params'"));
  EXPECT_THAT(complete(prefill, plain).body, HasSubstr("only prefills"));
  EXPECT_EQ(complete(prefill, park).status, 200);
  EXPECT_EQ(complete(decode, plain).status, 200);
  EXPECT_THAT(complete(decode, park).body, HasSubstr("for prefill workers"));
  EXPECT_EQ(raw_exchange(prefill.port, "POST", "/kvlane/v1/reserve", "{}").status, 404);
  EXPECT_EQ(complete(prefill, R"({"prompt": "A", "stream": true,
                                  "kv_transfer_params": {"do_remote_decode": true}})")
                .status,
            400);
}

TEST_F(WorkerTest, ForeignRoutersParkAndFetch) {
  const Running prefill = start(Role::kPrefill);
  const Running decode = start(Role::kDecode);
  // As vLLM's proxies send it.
  const RawResponse parked = complete(prefill, R"({"model": "tiny", "prompt": "A", "max_tokens": 1,
      "stream": false, "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false,
      "remote_engine_id": null, "remote_block_ids": null, "remote_host": null,
      "remote_port": null}})");
  ASSERT_EQ(parked.status, 200) << parked.body;
  const json first = json::parse(parked.body);
  EXPECT_EQ(first["choices"][0]["text"], "65 ");
  EXPECT_EQ(first["usage"]["completion_tokens"], 1);
  const json& params = first["kv_transfer_params"];
  EXPECT_EQ(params["do_remote_prefill"], true);
  EXPECT_EQ(params["remote_host"], "127.0.0.1");
  EXPECT_EQ(params["remote_port"], 4321);
  EXPECT_EQ(params["transfer_id"].get<std::string>().size(), 32U);

  json request = {{"prompt", "A"}, {"max_tokens", 3}, {"kv_transfer_params", params}};
  const RawResponse decoded = complete(decode, request.dump());
  ASSERT_EQ(decoded.status, 200) << decoded.body;
  EXPECT_EQ(json::parse(decoded.body)["choices"][0]["text"], "65 66 67 ");
  EXPECT_EQ(decode.engine->last_peer(), (Address{"127.0.0.1", 4321}));

  request["kv_transfer_params"]["transfer_id"] = std::string(32, 'f');
  EXPECT_EQ(complete(decode, request.dump()).status, 404);
}

TEST_F(WorkerTest, ReservationsAreAttachedToOnce) {
  const Running decode = start(Role::kDecode);
  const TransferId id = random_transfer_id();
  const json reserve = {{"api", "/v1/completions"},
                        {"transfer_id", to_string(id)},
                        {"request", {{"prompt", "A"}, {"max_tokens", 3}, {"stream", true}}}};
  const json attach = {{"transfer_id", to_string(id)}};
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/attach", attach.dump()).status, 404);
  const RawResponse reserved =
      raw_exchange(decode.port, "POST", "/kvlane/v1/reserve", reserve.dump());
  ASSERT_EQ(reserved.status, 200) << reserved.body;
  EXPECT_EQ(json::parse(reserved.body), (json{{"host", "127.0.0.1"}, {"port", 4321}}));
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/reserve", reserve.dump()).status, 400)
      << "the id is in use";
  wire_.deliver(id);
  const RawResponse answer = raw_exchange(decode.port, "POST", "/kvlane/v1/attach", attach.dump());
  std::string text;
  for (const json& event : parsed_events(answer.body)) text += event["choices"][0]["text"];
  EXPECT_EQ(text, "65 66 67 ");
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/attach", attach.dump()).status, 404);
}

TEST_F(WorkerTest, ReservationsCanBeReleased) {
  const Running decode = start(Role::kDecode);
  const std::string id = to_string(random_transfer_id());
  const json reserve = {
      {"api", "/v1/completions"}, {"transfer_id", id}, {"request", {{"prompt", "A"}}}};
  const std::string ticket = json{{"transfer_id", id}}.dump();
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/reserve", reserve.dump()).status, 200);
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/release", ticket).status, 200);
  EXPECT_EQ(decode.engine->aborted_requests().size(), 1U);
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/release", ticket).status, 404);
  EXPECT_EQ(raw_exchange(decode.port, "POST", "/kvlane/v1/attach", ticket).status, 404);
}

TEST_F(WorkerTest, BadReservationsAreRefused) {
  const Running decode = start(Role::kDecode);
  const auto reserve = [&](const std::string& body) {
    return raw_exchange(decode.port, "POST", "/kvlane/v1/reserve", body).status;
  };
  const std::string id = std::string(32, 'a');
  EXPECT_EQ(reserve(""), 400);
  EXPECT_EQ(reserve("[]"), 400);
  EXPECT_EQ(reserve(R"({"api": "/v1/completions", "transfer_id": "a", "request": {}})"), 400);
  EXPECT_EQ(reserve(R"({"api": "/v1/embeddings", "transfer_id": ")" + id + R"(", "request": {}})"),
            400);
  EXPECT_EQ(reserve(R"({"api": "/v1/completions", "transfer_id": ")" + id + R"(", "request": {}})"),
            400);
  EXPECT_EQ(reserve(R"({"api": 5, "transfer_id": 5, "request": 5})"), 400);
}

TEST_F(WorkerTest, StopEndsRunningRequests) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(20);
  Running worker = start(Role::kBoth, plan);
  RawHttp client(worker.port);
  const std::string body = R"({"prompt": "A", "max_tokens": 90, "stream": true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.take_through("\n\n");
  const TimePoint start_of_stop = SteadyClock::now();
  worker.service->stop(Seconds(0.1));
  EXPECT_LT(seconds_since(start_of_stop), 5);
  EXPECT_EQ(worker.engine->aborted_requests().size(), 1U);
  EXPECT_THAT(client.take_rest(), Not(HasSubstr("[DONE]")));
}

TEST_F(WorkerTest, TokenisesAndBack) {
  for (const Role role : {Role::kBoth, Role::kPrefill, Role::kDecode}) {
    const Running worker = start(role, {}, "secret");
    EXPECT_EQ(raw_exchange(worker.port, "POST", "/tokenize", R"({"prompt": "A"})").status, 401);
    const std::string key = "Authorization: Bearer secret\r\n";
    const RawResponse tokens =
        raw_exchange(worker.port, "POST", "/tokenize", R"({"prompt": "AB"})", key);
    ASSERT_EQ(tokens.status, 200) << tokens.body;
    EXPECT_EQ(json::parse(tokens.body)["tokens"], (json{65, 66}));
    const RawResponse text =
        raw_exchange(worker.port, "POST", "/detokenize", R"({"tokens": [65, 66]})", key);
    EXPECT_EQ(json::parse(text.body)["prompt"], "65 66 ");
    // Read on another thread.
    const std::string longer = R"({"prompt": ")" + std::string(100000, 'x') + "\"}";
    const RawResponse many = raw_exchange(worker.port, "POST", "/tokenize", longer, key);
    EXPECT_EQ(json::parse(many.body)["count"], 100000);
    EXPECT_EQ(raw_exchange(worker.port, "POST", "/detokenize", "{}", key).status, 400);
  }
}

TEST_F(WorkerTest, CountsWhatItDoes) {
  const Running worker = start(Role::kBoth, {}, "secret");
  const std::string key = "Authorization: Bearer secret\r\n";
  const auto ask = [&](const char* body) {
    return raw_exchange(worker.port, "POST", "/v1/completions", body, key).status;
  };
  EXPECT_EQ(ask(R"({"prompt": "AB", "max_tokens": 3, "n": 2})"), 200);
  EXPECT_EQ(ask(R"({"prompt": "AB", "max_tokens": 1, "stream": true})"), 200);
  EXPECT_EQ(ask(R"({"prompt": "AB", "bogus": 1})"), 400);
  const RawResponse metrics = raw_exchange(worker.port, "GET", "/metrics");
  ASSERT_EQ(metrics.status, 200) << "no key is asked for";
  EXPECT_THAT(metrics.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_EQ(sample(metrics.body, "kvlane_requests_running"), 1) << "as the engine says";
  EXPECT_EQ(sample(metrics.body, "kvlane_request_seconds_count"), 2);
  EXPECT_EQ(sample(metrics.body, "kvlane_prompt_tokens_total"), 4);
  EXPECT_EQ(sample(metrics.body, "kvlane_generation_tokens_total"), 7);
  EXPECT_EQ(sample(metrics.body, "kvlane_answers_finished_total", {"length"}), 3);
  EXPECT_EQ(sample(metrics.body, "kvlane_request_failures_total", {"invalid_argument"}), 1);
}

TEST_F(WorkerTest, CountsBothSidesOfATransfer) {
  const Running prefill = start(Role::kPrefill);
  const Running decode = start(Role::kDecode);
  const RawResponse parked =
      complete(prefill, R"({"prompt": "A", "kv_transfer_params": {"do_remote_decode": true}})");
  json request = {{"prompt", "A"}, {"max_tokens", 3}};
  request["kv_transfer_params"] = json::parse(parked.body)["kv_transfer_params"];
  EXPECT_EQ(complete(decode, request.dump()).status, 200);
  const std::string sent = raw_exchange(prefill.port, "GET", "/metrics").body;
  const std::string received = raw_exchange(decode.port, "GET", "/metrics").body;
  EXPECT_EQ(sample(sent, "kvlane_transfer_shipped_bytes_total"), 150);
  EXPECT_EQ(sample(received, "kvlane_transfer_shipped_bytes_total"), 150);
  EXPECT_EQ(sample(sent, "kvlane_generation_tokens_total"), 0);
  EXPECT_EQ(sample(received, "kvlane_generation_tokens_total"), 3);
  EXPECT_EQ(sample(sent, "kvlane_worker_info", {"role=\"prefill\""}), 1);
}

TEST_F(WorkerTest, CountsClientsThatLeave) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(20);
  const Running worker = start(Role::kBoth, plan);
  RawHttp client(worker.port);
  const std::string body = R"({"prompt": "A", "max_tokens": 90, "stream": true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.take_through("\n\n");
  client.close();
  EXPECT_TRUE(eventually([&] {
    const std::string metrics = raw_exchange(worker.port, "GET", "/metrics").body;
    return sample(metrics, "kvlane_request_failures_total", {"aborted"}) == 1;
  }));
}

TEST_F(WorkerTest, GivesSeveralAnswers) {
  const Running worker = start();
  const json answer =
      json::parse(complete(worker, R"({"prompt": "AB", "max_tokens": 2, "n": 3})").body);
  ASSERT_EQ(answer["choices"].size(), 3U);
  const std::vector<std::string> texts = {"65 66 ", "165 166 ", "265 266 "};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], texts[i]);
    EXPECT_EQ(answer["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(WorkerTest, StreamsSeveralAnswersApart) {
  const Running worker = start();
  const RawResponse response = chat(worker, R"({"messages": [{"role": "user", "content": "A"}],
      "max_tokens": 4, "n": 3, "stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_EQ(response.status, 200) << response.body;
  std::vector<std::string> texts(3);
  std::vector<int> roles(3);
  std::vector<int> ends(3);
  std::vector<json> events = parsed_events(response.body);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 12);
  events.pop_back();
  for (const json& event : events) {
    ASSERT_EQ(event["choices"].size(), 1U) << event;
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    ASSERT_LT(index, texts.size());
    EXPECT_EQ(ends[index], 0) << "something behind the end of choice " << index;
    roles[index] += choice["delta"].contains("role") ? 1 : 0;
    texts[index] += choice["delta"].value("content", "");
    ends[index] += choice["finish_reason"] == "length" ? 1 : 0;
  }
  EXPECT_THAT(texts, ElementsAre("65 66 67 68 ", "165 166 167 168 ", "265 266 267 268 "));
  EXPECT_THAT(roles, ElementsAre(1, 1, 1));
  EXPECT_THAT(ends, ElementsAre(1, 1, 1));
}

TEST_F(WorkerTest, TellsLogprobs) {
  const Running worker = start();
  const json whole =
      json::parse(complete(worker, R"({"prompt": "A", "max_tokens": 2, "logprobs": 2})").body);
  EXPECT_EQ(whole["choices"][0]["logprobs"],
            (json{{"tokens", {"65 ", "66 "}},
                  {"token_logprobs", {0.0, -1.0}},
                  {"top_logprobs", {{{"65 ", 0.0}, {"66 ", -1.0}}, {{"66 ", -1.0}, {"67 ", -2.0}}}},
                  {"text_offset", {0, 3}}}));
  const RawResponse streamed = chat(worker, R"({"messages": [{"role": "user", "content": "A"}],
      "max_tokens": 2, "logprobs": true, "top_logprobs": 1, "stream": true})");
  json content = json::array();
  for (const json& event : parsed_events(streamed.body)) {
    const json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const json& entry : logprobs["content"]) content.push_back(entry);
  }
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[1]["token"], "66 ");
  EXPECT_EQ(content[1]["bytes"], (json{54, 54, 32}));
  EXPECT_EQ(content[1]["top_logprobs"].size(), 1U);
  EXPECT_EQ(content[1]["top_logprobs"][0]["logprob"], -1.0);
}

TEST_F(WorkerTest, PrefillsAnswerWithTheFirstTokenOfEachChoice) {
  const Running prefill = start(Role::kPrefill);
  const json answer =
      json::parse(complete(prefill, R"({"prompt": "A", "n": 2, "logprobs": 0, "min_tokens": 9,
                            "kv_transfer_params": {"do_remote_decode": true}})")
                      .body);
  ASSERT_EQ(answer["choices"].size(), 2U) << answer;
  EXPECT_EQ(answer["choices"][0]["text"], "65 ");
  EXPECT_EQ(answer["choices"][1]["text"], "165 ");
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["choices"][1]["logprobs"]["token_logprobs"], (json{0.0}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
  EXPECT_EQ(prefill.engine->requests()[0].min_tokens, 1) << "of the one token made here";
}

TEST_F(WorkerTest, ALeavingClientAbortsAllItsAnswers) {
  FakeEnginePlan plan;
  plan.token_delay = std::chrono::milliseconds(50);
  const Running worker = start(Role::kBoth, plan);
  RawHttp client(worker.port);
  const std::string body = R"({"prompt": "A", "max_tokens": 90, "n": 4, "stream": true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.take_through("\"index\":3");
  client.close();
  EXPECT_TRUE(eventually([&] { return worker.engine->aborted_requests().size() == 1; }));
}

}  // namespace
}  // namespace kvlane
