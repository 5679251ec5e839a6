// For tests: a gateway in front of workers over fake engines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/coroutine.h"
#include "server/fake_engine.h"
#include "server/gateway.h"
#include "server/http_server.h"
#include "server/raw_http.h"
#include "server/service.h"
#include "server/worker.h"

namespace kvlane {

class GatewayTest : public testing::Test {
 protected:
  struct Running {
    FakeEngine* engine = nullptr;
    std::unique_ptr<Service> service;
    Url url;
  };

  Running start_worker(Role role, FakeEnginePlan plan = {}, const std::string& key = {}) {
    auto engine = std::make_unique<FakeEngine>(std::move(plan), &wire_);
    Running running;
    running.engine = engine.get();
    WorkerServiceOptions options;
    options.service.bind = {"127.0.0.1", 0};
    options.service.api_key = key;
    options.role = role;
    options.model_name = "tiny";
    options.data_plane = Address{"127.0.0.1", 4321};
    auto service = Service::start_worker(std::move(engine), prompter_, std::move(options));
    EXPECT_TRUE(service.ok()) << service.status().message();
    running.service = std::move(*service);
    running.url = {running.service->address(), ""};
    return running;
  }

  struct Pair {
    Running prefill, decode;
  };

  // A gateway before one worker of each kind, of which the one that decodes has room for so many
  // requests, and takes so long for a token.
  Pair start_narrow(int running_max, std::chrono::milliseconds token_delay) {
    FakeEnginePlan narrow;
    narrow.running_max = running_max;
    narrow.token_delay = token_delay;
    Pair pair{start_worker(Role::kPrefill), start_worker(Role::kDecode, narrow)};
    patience_ = Seconds(20);
    start({pair.prefill.url}, {pair.decode.url});
    return pair;
  }

  // A server that is no worker: `handler` answers everything.
  std::unique_ptr<HttpServer> start_impostor(HttpHandler handler) {
    HttpServerOptions options;
    options.bind = {"127.0.0.1", 0};
    auto server = HttpServer::start(loop_, options, std::move(handler));
    EXPECT_TRUE(server.ok());
    return std::move(*server);
  }
  static Url url_of(const HttpServer& server) { return {server.address(), ""}; }

  // Nobody listens there.
  static Url nowhere() {
    asio::io_context context;
    asio::ip::tcp::acceptor closed(context, {asio::ip::address_v4::loopback(), 0});
    return {{"127.0.0.1", closed.local_endpoint().port()}, ""};
  }

  void start(std::vector<Url> prefill, std::vector<Url> decode, std::string key = {}) {
    GatewayOptions options;
    options.prefill = std::move(prefill);
    options.decode = std::move(decode);
    options.api_key = key;
    options.probe_interval = probe_interval_;
    options.probe_timeout = probe_timeout_;
    options.patience = patience_;
    options.waiting_max = waiting_max_;
    options.calls = calls_;
    gateway_ = std::make_unique<Gateway>(loop_, std::move(options));
    Router router;
    router.require_key(std::move(key));
    gateway_->add_routes(router);
    HttpServerOptions server;
    server.bind = {"127.0.0.1", 0};
    auto started = HttpServer::start(loop_, server, std::move(router).handler());
    ASSERT_TRUE(started.ok());
    server_ = std::move(*started);
    port_ = server_->address().port;
  }
  RawResponse complete(std::string_view body, std::string_view fields = {}) const {
    return raw_exchange(port_, "POST", "/v1/completions", body, fields);
  }
  // The same without waiting for the answer.
  std::unique_ptr<RawHttp> post(std::string_view body) const {
    auto client = std::make_unique<RawHttp>(port_);
    client->send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
    return client;
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  Seconds probe_interval_{0.05};
  Seconds probe_timeout_{2};
  Seconds patience_{0.1};
  std::size_t waiting_max_ = 256;
  HttpCallLimits calls_;
  FakeWire wire_;
  FakePrompter prompter_;
  EventLoop loop_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
};

}  // namespace kvlane
