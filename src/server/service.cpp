// Putting loop, routes and server together, and taking them down in the right order.
// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <nlohmann/json.hpp>

#include "server/coroutine.h"
#include "server/gateway.h"
#include "server/http_server.h"
#include "server/json_text.h"
#include "server/router.h"
#include "server/worker.h"

namespace kvlane {

namespace {

void add_version_route(Router& router) {
  router.add(
      "GET", "/version",
      [](const HttpRequest&, HttpReply& reply) -> asio::awaitable<void> {
        const nlohmann::json body = {{"version", KVLANE_VERSION}};
        HttpResponse response;
        response.body = to_text(body);
        co_await reply.send(response);
      },
      true);
}

Result<std::unique_ptr<HttpServer>> start_server(EventLoop& loop, const ServiceOptions& options,
                                                 Router router) {
  add_version_route(router);
  router.require_key(options.api_key);
  HttpServerOptions server;
  server.bind = options.bind;
  return HttpServer::start(loop, server, std::move(router).handler());
}

// Members end in reverse: no handler runs when the worker goes; the engine's last callbacks still
// find the loop.
class WorkerService : public Service {
 public:
  WorkerService(std::unique_ptr<Engine> engine, const Prompter& prompter, WorkerOptions options)
      : engine_(std::move(engine)), worker_(*engine_, prompter, loop_, std::move(options)) {}

  Status start(const ServiceOptions& options) {
    Router router;
    worker_.add_routes(router);
    KVLANE_ASSIGN(server_, start_server(loop_, options, std::move(router)));
    return {};
  }
  const Address& address() const override { return server_->address(); }
  void stop(Seconds grace) override { server_->stop(grace); }

 private:
  EventLoop loop_;
  std::unique_ptr<Engine> engine_;
  Worker worker_;
  std::unique_ptr<HttpServer> server_;
};

class GatewayService : public Service {
 public:
  explicit GatewayService(GatewayOptions options) : gateway_(loop_, std::move(options)) {}

  Status start(const ServiceOptions& options) {
    Router router;
    gateway_.add_routes(router);
    KVLANE_ASSIGN(server_, start_server(loop_, options, std::move(router)));
    return {};
  }
  const Address& address() const override { return server_->address(); }
  void stop(Seconds grace) override { server_->stop(grace); }

 private:
  EventLoop loop_;
  Gateway gateway_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

Result<std::unique_ptr<Service>> Service::start_worker(std::unique_ptr<Engine> engine,
                                                       const Prompter& prompter,
                                                       WorkerServiceOptions options) {
  if (options.role != Role::kBoth && !options.data_plane) {
    return invalid_argument("a prefill or decode worker needs a data plane");
  }
  WorkerOptions worker;
  worker.role = options.role;
  worker.model_name = std::move(options.model_name);
  worker.data_plane = std::move(options.data_plane);
  worker.engine_id = new_request_id();
  worker.reservation_lease = options.reservation_lease;
  auto service = std::make_unique<WorkerService>(std::move(engine), prompter, std::move(worker));
  KVLANE_TRY(service->start(options.service));
  return std::unique_ptr<Service>(std::move(service));
}

Result<std::unique_ptr<Service>> Service::start_gateway(GatewayServiceOptions options) {
  if (options.prefill.empty() || options.decode.empty()) {
    return invalid_argument("a gateway needs at least one prefill and one decode worker");
  }
  GatewayOptions gateway;
  gateway.prefill = std::move(options.prefill);
  gateway.decode = std::move(options.decode);
  gateway.api_key = options.service.api_key;
  auto service = std::make_unique<GatewayService>(std::move(gateway));
  KVLANE_TRY(service->start(options.service));
  return std::unique_ptr<Service>(std::move(service));
}

}  // namespace kvlane
