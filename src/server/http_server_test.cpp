// The HTTP server against clients that behave, and clients that do not.
// SPDX-License-Identifier: Apache-2.0
#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <vector>

#include "server/coroutine.h"
#include "server/openai_response.h"
#include "server/raw_http.h"
#include "server/router.h"

namespace kvlane {
namespace {

using testing::HasSubstr;
using testing::Not;

// Coroutine lambdas stored in std::function: their captures live as long as the router.
class HttpServerTest : public testing::Test {
 protected:
  void start(HttpServerOptions options = {}, std::string key = {}) {
    options.bind = {"127.0.0.1", 0};
    Router router;
    router.require_key(std::move(key));
    router.add(
        "GET", "/hello",
        [](const HttpRequest&, HttpReply& reply) -> asio::awaitable<void> {
          HttpResponse response;
          response.body = "hello";
          co_await reply.send(response);
        },
        true);
    router.add("POST", "/echo",
               [](const HttpRequest& request, HttpReply& reply) -> asio::awaitable<void> {
                 HttpResponse response;
                 response.body = request.body;
                 co_await reply.send(response);
               });
    router.add("GET", "/throw", [](const HttpRequest&, HttpReply&) -> asio::awaitable<void> {
      throw std::runtime_error("broken on purpose");
      co_return;
    });
    router.add("GET", "/silent",
               [](const HttpRequest&, HttpReply&) -> asio::awaitable<void> { co_return; });
    router.add("GET", "/stream",
               [this](const HttpRequest&, HttpReply& reply) { return stream(reply); });
    router.add("GET", "/forever",
               [this](const HttpRequest&, HttpReply& reply) { return forever(reply); });
    router.add("GET", "/events",
               [this](const HttpRequest&, HttpReply& reply) { return events(reply); });
    router.add("GET", "/flood",
               [this](const HttpRequest&, HttpReply& reply) { return flood(reply); });
    Result<std::unique_ptr<HttpServer>> made =
        HttpServer::start(loop_, options, std::move(router).handler());
    ASSERT_TRUE(made.ok()) << made.status().message();
    server_ = std::move(*made);
    port_ = server_->address().port;
  }

  asio::awaitable<void> stream(HttpReply& reply) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    co_await reply.start_stream(head);
    for (int i = 0; i < 3; ++i) {
      const std::string piece = "piece " + std::to_string(i) + "\n";
      co_await reply.write(piece);
    }
    co_await reply.finish();
  }

  // Waits until it is cancelled; counts that its frame was unwound.
  asio::awaitable<void> forever(HttpReply&) {
    struct Unwound {
      std::atomic<int>& count;
      ~Unwound() { ++count; }
    } unwound{unwound_};
    ++entered_;
    asio::steady_timer timer(loop_.executor());
    timer.expires_after(std::chrono::hours(1));
    co_await timer.async_wait(asio::use_awaitable);
  }

  asio::awaitable<void> events(HttpReply& reply) {
    HttpResponse head;
    head.content_type = kEventStreamType;
    head.body = "data: first\n\n";
    co_await reply.start_stream(head);
    co_await forever(reply);
  }

  // Writes far more than the sockets hold, until the reply fails.
  asio::awaitable<void> flood(HttpReply& reply) {
    const HttpResponse head;
    co_await reply.start_stream(head);
    const std::string piece(1 << 20, 'x');
    Status status;
    while (status.ok()) {
      status = co_await reply.write(piece);
      if (status.ok()) ++flooded_mib_;
    }
    flood_end_ = static_cast<int>(status.code());
  }

  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(i < 100 ? 1 : 5));
    }
    return false;
  }

  std::atomic<int> entered_ = 0;
  std::atomic<int> unwound_ = 0;
  std::atomic<int> flooded_mib_ = 0;
  std::atomic<int> flood_end_ = 0;
  EventLoop loop_;
  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
};

TEST_F(HttpServerTest, AnswersOnOneConnectionAgainAndAgain) {
  start();
  RawHttp client(port_);
  for (int i = 0; i < 3; ++i) {
    const RawResponse response = client.exchange("POST", "/echo", "body " + std::to_string(i));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "body " + std::to_string(i));
    EXPECT_THAT(response.head, HasSubstr("Connection: keep-alive"));
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawHttp client(port_);
  const std::string get = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n";
  client.send(get + get + "GET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_response().body, "hello");
  EXPECT_EQ(client.read_response().body, "hello");
  EXPECT_EQ(client.read_response().status, 404);
}

TEST_F(HttpServerTest, ClosesWhenAskedToAndForOldClients) {
  start();
  RawHttp polite(port_);
  EXPECT_THAT(polite.exchange("GET", "/hello", "", "Connection: close\r\n").head,
              HasSubstr("Connection: close"));
  EXPECT_EQ(polite.take_rest(), "");
  RawHttp old(port_);
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const RawResponse response = old.read_response();
  EXPECT_THAT(response.head, Not(HasSubstr("chunked")));
  EXPECT_EQ(response.body, "piece 0\npiece 1\npiece 2\n");
}

TEST_F(HttpServerTest, StreamsInChunks) {
  start();
  RawHttp client(port_);
  const RawResponse response = client.exchange("GET", "/stream");
  EXPECT_TRUE(response.whole);
  EXPECT_THAT(response.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_EQ(response.body, "piece 0\npiece 1\npiece 2\n");
  EXPECT_EQ(client.exchange("GET", "/hello").body, "hello") << "the connection stays usable";
}

TEST_F(HttpServerTest, UnknownRoutesAndMethodsAreErrorsInOpenAiForm) {
  start();
  const RawResponse missing = raw_exchange(port_, "GET", "/v2/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_THAT(missing.body, HasSubstr(R"("message":"There is no route /v2/nothing.")"));
  EXPECT_THAT(missing.body, HasSubstr(R"("type":"invalid_request_error")"));
  const RawResponse wrong = raw_exchange(port_, "GET", "/echo");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: POST"));
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  RawHttp client(port_);
  client.send("HEAD /hello HTTP/1.1\r\nHost: t\r\n\r\nGET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(client.take_through("\r\n\r\n"), HasSubstr("Content-Length: 5"));
  EXPECT_EQ(client.read_response().body, "hello");
}

TEST_F(HttpServerTest, EchoesSafeRequestIdsAndReplacesOthers) {
  start();
  EXPECT_THAT(raw_exchange(port_, "GET", "/hello", "", "X-Request-Id: abc-7\r\n").head,
              HasSubstr("X-Request-Id: abc-7\r\n"));
  const std::string longer(500, 'a');
  const RawResponse replaced =
      raw_exchange(port_, "GET", "/hello", "", "X-Request-Id: " + longer + "\r\n");
  EXPECT_THAT(replaced.head, Not(HasSubstr(longer)));
  EXPECT_THAT(replaced.head, HasSubstr("X-Request-Id: "));
}

TEST_F(HttpServerTest, RefusesWhatIsNotHttp) {
  start();
  for (const std::string_view text :
       {"\x16\x03\x01\x02 a TLS hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"}) {
    RawHttp client(port_);
    client.send(text);
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, 400) << text;
    EXPECT_THAT(response.body, HasSubstr("not valid HTTP/1.1")) << text;
    EXPECT_EQ(client.take_rest(), "") << "the connection is closed";
  }
}

TEST_F(HttpServerTest, RefusesOversizedBodiesBeforeTheyArrive) {
  HttpServerOptions options;
  options.body_bytes_max = 1000;
  start(options);
  RawHttp announced(port_);
  announced.send("POST /echo HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n");
  const RawResponse response = announced.read_response();
  EXPECT_EQ(response.status, 413);
  EXPECT_THAT(response.body, HasSubstr("1000 bytes"));
  // In chunks the size is seen late; the answer must survive although the client keeps sending.
  RawHttp chunked(port_);
  chunked.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 50; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);
  EXPECT_EQ(raw_exchange(port_, "POST", "/echo", std::string(1000, 'x')).status, 200);
}

TEST_F(HttpServerTest, RefusesOversizedHeaders) {
  HttpServerOptions options;
  options.header_bytes_max = 2000;
  start(options);
  EXPECT_EQ(
      raw_exchange(port_, "GET", "/hello", "", "X-A: " + std::string(3000, 'a') + "\r\n").status,
      431);
  EXPECT_EQ(raw_exchange(port_, "GET", "/" + std::string(3000, 'a')).status, 431);
}

TEST_F(HttpServerTest, ContinuesWhenTheClientAsksBeforeItSends) {
  start();
  RawHttp client(port_);
  client.send("POST /echo HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.take_through("\r\n\r\n"), HasSubstr("100 Continue"));
  client.send("body");
  EXPECT_EQ(client.read_response().body, "body");
}

TEST_F(HttpServerTest, SlowHeadersAndBodiesEndWithATimeout) {
  HttpServerOptions options;
  options.header_timeout = Seconds(0.2);
  options.body_timeout = Seconds(0.2);
  start(options);
  // One byte at a time must not extend the deadline.
  RawHttp loris(port_);
  std::atomic<bool> done = false;
  std::thread drip([&] {
    for (const char c : std::string("GET /hello HTTP/1.1\r\nX-Slow: ") + std::string(200, 'a')) {
      if (done) break;
      loris.send(std::string_view(&c, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_EQ(loris.read_response().status, 408);
  done = true;
  drip.join();
  RawHttp half(port_);
  half.send("POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf of it");
  EXPECT_EQ(half.read_response().status, 408);
}

TEST_F(HttpServerTest, IdleConnectionsAreClosedSilently) {
  HttpServerOptions options;
  options.idle_timeout = Seconds(0.1);
  start(options);
  RawHttp never(port_);
  EXPECT_EQ(never.take_rest(), "");
  RawHttp once(port_);
  EXPECT_EQ(once.exchange("GET", "/hello").status, 200);
  EXPECT_EQ(once.take_rest(), "");
}

TEST_F(HttpServerTest, ClientsBeyondTheLimitAreTold) {
  HttpServerOptions options;
  options.connections_max = 2;
  start(options);
  RawHttp first(port_);
  RawHttp second(port_);
  EXPECT_EQ(first.exchange("GET", "/hello").status, 200);
  EXPECT_EQ(second.exchange("GET", "/hello").status, 200);
  RawHttp third(port_);
  const RawResponse refused = third.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1"));
  third.close();
  first.close();
  EXPECT_TRUE(eventually([&] { return raw_exchange(port_, "GET", "/hello").status == 200; }));
}

TEST_F(HttpServerTest, ExceptionsAndSilenceAreInternalErrors) {
  start();
  RawHttp client(port_);
  EXPECT_EQ(client.exchange("GET", "/throw").status, 500);
  const RawResponse silent = client.exchange("GET", "/silent");
  EXPECT_EQ(silent.status, 500);
  EXPECT_THAT(silent.body, Not(HasSubstr("on purpose"))) << "internals are logged, not told";
}

TEST_F(HttpServerTest, ALeavingClientCancelsItsHandler) {
  start();
  RawHttp client(port_);
  client.send("GET /forever HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return entered_ == 1; }));
  EXPECT_EQ(unwound_, 0);
  client.close();
  EXPECT_TRUE(eventually([&] { return unwound_ == 1; }));
  EXPECT_EQ(raw_exchange(port_, "GET", "/hello").status, 200);
}

// Bytes that nobody reads yet, of a next request or none, do not hide that it left.
TEST_F(HttpServerTest, AClientThatLeavesBehindMoreBytesIsNoticed) {
  start();
  const std::string forever = "GET /forever HTTP/1.1\r\nHost: t\r\n\r\n";
  int clients = 0;
  for (const std::string& more : {std::string("\r\n"), forever}) {
    RawHttp client(port_);
    client.send(forever);
    EXPECT_TRUE(eventually([&] { return entered_ == clients + 1; }));
    client.send(more);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(unwound_, clients);
    client.close();
    ++clients;
    EXPECT_TRUE(eventually([&] { return unwound_ == clients; }));
  }
  EXPECT_EQ(raw_exchange(port_, "GET", "/hello").status, 200);
}

TEST_F(HttpServerTest, ALeavingClientIsNoticedWhateverTheTiming) {
  start();
  // Some leave while the reactor still reports the arrival of their request.
  constexpr int kClients = 300;
  for (int i = 0; i < kClients; ++i) {
    RawHttp client(port_);
    client.send("GET /forever HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_TRUE(eventually([&] { return entered_ == i + 1; }));
  }
  EXPECT_TRUE(eventually([&] { return unwound_ == kClients; }));
}

TEST_F(HttpServerTest, AClientThatReadsNothingStopsTheWriterAndIsDropped) {
  HttpServerOptions options;
  options.write_timeout = Seconds(0.3);
  start(options);
  RawHttp client(port_);
  client.send("GET /flood HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return flood_end_ != 0; }));
  EXPECT_EQ(flood_end_, static_cast<int>(Code::kTimeout));
  EXPECT_LT(flooded_mib_, 64) << "the writer waits for the socket";
}

TEST_F(HttpServerTest, StopLetsHandlersEndOrCancelsThem) {
  start();
  RawHttp idle(port_);
  EXPECT_EQ(idle.exchange("GET", "/hello").status, 200);
  RawHttp waiting(port_);
  waiting.send("GET /forever HTTP/1.1\r\nHost: t\r\n\r\n");
  RawHttp stream(port_);
  stream.send("GET /events HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return entered_ == 2; }));
  const TimePoint start_of_stop = SteadyClock::now();
  server_->stop(Seconds(0.2));
  EXPECT_GE(seconds_since(start_of_stop), 0.2);
  EXPECT_LT(seconds_since(start_of_stop), 5);
  EXPECT_EQ(unwound_, 2);
  EXPECT_EQ(idle.take_rest(), "");
  const RawResponse cut = waiting.read_response();
  EXPECT_EQ(cut.status, 503);
  EXPECT_THAT(cut.head, HasSubstr("Retry-After: "));
  EXPECT_THAT(cut.body, HasSubstr("The server stops."));
  const RawResponse events = stream.read_response();
  EXPECT_EQ(events.status, 200);
  EXPECT_THAT(events.body, HasSubstr("data: first\n\ndata: {\"error\":"));
  EXPECT_THAT(events.body, HasSubstr("The server stops."));
  EXPECT_FALSE(RawHttp(port_).connected());
}

TEST_F(HttpServerTest, AsksForTheKey) {
  start({}, "secret");
  EXPECT_EQ(raw_exchange(port_, "GET", "/hello").status, 200) << "an open route";
  const RawResponse refused = raw_exchange(port_, "POST", "/echo", "x");
  EXPECT_EQ(refused.status, 401);
  EXPECT_THAT(refused.body, HasSubstr("invalid_api_key"));
  for (const std::string_view bad :
       {"Bearer ", "Bearer secre", "Bearer secret2", "secret", "Basic secret"}) {
    const std::string field = "Authorization: " + std::string(bad) + "\r\n";
    EXPECT_EQ(raw_exchange(port_, "POST", "/echo", "x", field).status, 401) << bad;
  }
  for (const std::string_view good :
       {"authorization: Bearer secret", "Authorization: bEARER secret"}) {
    const std::string field = std::string(good) + "\r\n";
    EXPECT_EQ(raw_exchange(port_, "POST", "/echo", "x", field).status, 200) << good;
  }
}

TEST_F(HttpServerTest, AnAddressInUseIsAnError) {
  start();
  HttpServerOptions options;
  options.bind = {"127.0.0.1", port_};
  const auto second = HttpServer::start(loop_, options, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(port_)));
}

TEST_F(HttpServerTest, ManyStreamsAtOnce) {
  start();
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawHttp>(port_));
    clients.back()->send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  }
  for (const auto& client : clients) {
    EXPECT_EQ(client->read_response().body, "piece 0\npiece 1\npiece 2\n");
  }
}

TEST(SameSecret, ComparesWhole) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abcabc", "abc"));
  EXPECT_FALSE(same_secret("", "abc"));
  EXPECT_FALSE(same_secret("ab", "abc"));
  EXPECT_FALSE(same_secret("abd", "abc"));
}

}  // namespace
}  // namespace kvlane
