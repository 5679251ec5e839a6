// The routes of one worker over its engine. What each role takes, and how gateways and foreign
// routers use it: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "server/event_loop.h"
#include "server/openai_response.h"
#include "server/prompt.h"
#include "server/request_reader.h"
#include "server/request_updates.h"
#include "server/router.h"
#include "server/worker_metrics.h"
#include "server/worker_role.h"

namespace kvlane {

struct WorkerOptions {
  Role role = Role::kBoth;
  std::string model_name;             // what clients call the model
  std::optional<Address> data_plane;  // where peers reach the engine's endpoint; none with kBoth
  std::string engine_id;              // of this process, told to foreign routers
  Seconds reservation_lease{60};      // a reservation nobody attaches to is forgotten
};

// Runs on the loop's thread. Engine, prompter and loop outlive it, and it outlives the server.
class Worker {
 public:
  Worker(Engine& engine, const Prompter& prompter, EventLoop& loop, WorkerOptions options);
  void add_routes(Router& router);

 private:
  // A request on its way through this worker.
  struct Job {
    CompletionRequest request;
    GenerationRequest generation;
    AnswerHead head;
    TimePoint received;
  };
  struct Reservation {
    Job job;
    RequestId engine_request = 0;
    TimePoint expires;
  };
  struct ReservationRequest {
    TransferId id;
    Job job;
  };

  // Hands the job to the engine, all of it or what another worker has not computed. Takes its
  // generation request.
  Result<RequestId> submit(Job& job, OnUpdate on_update);
  asio::awaitable<void> complete(Api api, const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> prefill(Job job, HttpReply& reply);
  asio::awaitable<void> reserve(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> attach(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> release(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> answer(Job job, RequestUpdates& updates, HttpReply& reply);
  asio::awaitable<void> stream(const Job& job, Update first, RequestUpdates& updates,
                               HttpReply& reply);
  // /tokenize or /detokenize.
  using Conversion = ApiResult<std::string>(std::string_view body, const Prompter& prompter,
                                            const std::string& model_name);
  asio::awaitable<void> convert(Conversion* conversion, const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> health(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> metrics(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> models(const HttpRequest& http, HttpReply& reply);

  // On any thread.
  ApiResult<Job> make_job(ApiResult<CompletionRequest> parsed, const HttpRequest& http) const;
  ApiResult<ReservationRequest> read_reservation(const HttpRequest& http) const;
  HttpResponse refuse(const ApiError& error) const;  // and counts it
  std::shared_ptr<RequestMeter> meter(const Job& job) const;
  std::optional<ApiError> check_role(const CompletionRequest& request) const;
  ApiResult<Address> make_reservation(ReservationRequest wanted);
  std::optional<Reservation> take_reservation(const HttpRequest& http);
  void give_back(const TransferId& id);
  void forget_expired_reservations();

  Engine& engine_;
  const Prompter& prompter_;
  asio::any_io_executor executor_;
  WorkerOptions options_;
  std::int64_t started_;                    // seconds since 1970
  std::shared_ptr<WorkerMetrics> metrics_;  // shared with the engine's callbacks, which may be last
  std::map<TransferId, Reservation> reservations_;
  RequestReader reader_;  // its thread ends before anything above goes
};

}  // namespace kvlane
