// The HTTP client against servers that behave, and servers that do not.
// SPDX-License-Identifier: Apache-2.0
#include "server/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "server/coroutine.h"
#include "server/http_server.h"
#include "server/tcp_stream.h"

namespace kvlane {
namespace {

using testing::HasSubstr;

// Accepts one connection, sends `answer` and closes.
class RawServer {
 public:
  RawServer(EventLoop& loop, std::string answer)
      : acceptor_(loop.executor(), {asio::ip::address_v4::loopback(), 0}),
        answer_(std::move(answer)) {
    asio::co_spawn(loop.executor(), serve(), asio::detached);
  }
  Url url() const { return {{"127.0.0.1", acceptor_.local_endpoint().port()}, ""}; }

 private:
  asio::awaitable<void> serve() {
    asio::ip::tcp::socket socket = co_await acceptor_.async_accept(asio::use_awaitable);
    TcpStream stream(std::move(socket));
    const Status written = co_await stream.write_all(answer_, Seconds(5));
    EXPECT_TRUE(written.ok());
    co_await stream.linger(deadline_after(Seconds(5)));
  }
  asio::ip::tcp::acceptor acceptor_;
  std::string answer_;
};

class HttpClientTest : public testing::Test {
 protected:
  Result<HttpResponse> fetch(const Url& url, HttpCallRequest request = {},
                             HttpCallLimits limits = {}, std::size_t bytes_max = 1000) {
    Result<HttpResponse> result = internal_error("not run");
    loop_.run_coroutine([&]() -> asio::awaitable<void> {
      result = co_await http_fetch(loop_.executor(), url, request, limits, bytes_max);
    });
    return result;
  }
  Result<HttpResponse> fetch_raw(const std::string& answer, HttpCallLimits limits = {}) {
    const RawServer server(loop_, answer);
    return fetch(server.url(), {}, limits);
  }
  static Url url_of(const HttpServer& server) { return {server.address(), ""}; }

  EventLoop loop_;
};

TEST_F(HttpClientTest, SendsWhatItWasGivenAndReadsTheAnswer) {
  HttpServerOptions options;
  options.bind = {"127.0.0.1", 0};
  const auto server = HttpServer::start(
      loop_, options, [](const HttpRequest& request, HttpReply& reply) -> asio::awaitable<void> {
        HttpResponse response;
        response.status = 404;
        response.body = request.method + " " + request.path + " " + request.body + " " +
                        std::string(request.headers.find("X-Extra"));
        co_await reply.send(response);
      });
  ASSERT_TRUE(server.ok());
  HttpCallRequest request;
  request.method = "POST";
  request.path = "/route";
  request.headers.add("X-Extra", "field");
  request.body = "body";
  Url url = url_of(**server);
  url.prefix = "/prefix";
  const Result<HttpResponse> response = fetch(url, request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->body, "POST /prefix/route body field");
  EXPECT_EQ(response->content_type, "application/json");
}

TEST_F(HttpClientTest, ReadsChunksAndBodiesWithoutALength) {
  EXPECT_EQ(fetch_raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n"
                      "0\r\n\r\n")
                ->body,
            "abcde");
  EXPECT_EQ(fetch_raw("HTTP/1.0 200 OK\r\n\r\nall of it")->body, "all of it");
}

TEST_F(HttpClientTest, BadAnswersAreErrors) {
  const auto code = [this](const std::string& answer) { return fetch_raw(answer).status().code(); };
  EXPECT_EQ(code("SSH-2.0-OpenSSH_9.2\r\n"), Code::kCorrupt);
  EXPECT_EQ(code("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), Code::kCorrupt);
  EXPECT_EQ(code("HTTP/1.1 200 OK\r\n" + std::string(20000, 'a') + "\r\n\r\n"), Code::kCorrupt);
  EXPECT_EQ(code("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + std::string(2000, 'x')),
            Code::kCorrupt)
      << "longer than what the caller takes";
  EXPECT_EQ(code("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"), Code::kUnavailable);
  EXPECT_EQ(code("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
            Code::kUnavailable);
  EXPECT_EQ(code("HTTP/1.1 200"), Code::kUnavailable);
  EXPECT_EQ(code(""), Code::kUnavailable);
}

TEST_F(HttpClientTest, NobodyThereIsUnavailable) {
  Url url;
  {
    asio::ip::tcp::acceptor closed(loop_.executor(), {asio::ip::address_v4::loopback(), 0});
    url.address = {"127.0.0.1", closed.local_endpoint().port()};
  }
  const Result<HttpResponse> response = fetch(url);
  EXPECT_EQ(response.status().code(), Code::kUnavailable);
  EXPECT_THAT(response.status().message(), HasSubstr(to_string(url.address)));
  EXPECT_THAT(response.status().message(), HasSubstr("refused"));
}

TEST_F(HttpClientTest, SilenceEndsWithATimeout) {
  asio::ip::tcp::acceptor silent(loop_.executor(), {asio::ip::address_v4::loopback(), 0});
  const Url url{{"127.0.0.1", silent.local_endpoint().port()}, ""};
  HttpCallLimits limits;
  limits.head_timeout = Seconds(0.1);
  EXPECT_EQ(fetch(url, {}, limits).status().code(), Code::kTimeout);
}

TEST_F(HttpClientTest, CancelEndsAWaitingCall) {
  asio::ip::tcp::acceptor silent(loop_.executor(), {asio::ip::address_v4::loopback(), 0});
  const Url url{{"127.0.0.1", silent.local_endpoint().port()}, ""};
  Result<HttpResponse> result = internal_error("not run");
  loop_.run_coroutine([&]() -> asio::awaitable<void> {
    HttpCall call(loop_.executor());
    asio::steady_timer timer(loop_.executor());
    timer.expires_after(std::chrono::milliseconds(50));
    timer.async_wait([&call](boost::system::error_code) { call.cancel(); });
    const HttpCallRequest request;
    result = co_await call.open(url, request);
  });
  EXPECT_EQ(result.status().code(), Code::kAborted);
}

}  // namespace
}  // namespace kvlane
