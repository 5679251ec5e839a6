// The gateway: one OpenAI API in front of prefill workers and decode workers.
//
// For each request it picks one of each kind, has the decode worker reserve room, sends the prompt
// to the prefill worker, which pushes the KV, and relays the decode worker's answer. A worker that
// fails before the client got its first byte costs a retry on others. Protocol: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/event_loop.h"
#include "server/gateway_metrics.h"
#include "server/http_client.h"
#include "server/openai_request.h"
#include "server/router.h"
#include "server/waiting_line.h"
#include "server/worker_pool.h"

namespace kvlane {

struct GatewayOptions {
  std::vector<Url> prefill;  // at least one of each
  std::vector<Url> decode;
  std::string api_key;            // sent to workers; empty: none
  int attempts_max = 3;           // workers tried for one request, the first included
  Seconds probe_interval{1};      // of workers' health and load
  Seconds probe_timeout{2};       // five without an answer: the worker is lost
  Seconds patience{30};           // how long a request waits for workers that are full
  std::size_t waiting_max = 256;  // requests that wait; more are refused at once
  HttpCallLimits calls;           // to workers
};

// Runs on the loop's thread. The loop outlives it, and it outlives the server.
class Gateway {
 public:
  Gateway(EventLoop& loop, GatewayOptions options);
  ~Gateway();
  void add_routes(Router& router);

 private:
  struct Client;
  struct Outcome;
  struct PrefillTask;
  class PrefillGuard;
  class ReservationGuard;

  asio::awaitable<void> complete(Api api, const HttpRequest& http, HttpReply& reply);
  static std::optional<ApiError> read_client(Client& client);
  asio::awaitable<Outcome> answer_when_possible(Client& client, HttpReply& reply);
  asio::awaitable<Outcome> try_workers(Client& client, HttpReply& reply);
  asio::awaitable<Outcome> attempt(Client& client, std::size_t prefill, std::size_t decode,
                                   HttpReply& reply);
  asio::awaitable<Outcome> reserve(const Client& client, std::size_t decode, const TransferId& id,
                                   Address& data_plane, ReservationGuard& reservation);
  asio::awaitable<Outcome> relay(const Client& client, HttpCall& answer, std::size_t decode,
                                 HttpResponse response, HttpReply& reply);
  asio::awaitable<void> relay_events(const Client& client, HttpCall& answer, HttpReply& reply);
  void start_prefill(const std::shared_ptr<PrefillTask>& task, const Client& client,
                     std::size_t prefill, const TransferId& id, const Address& data_plane) const;
  static asio::awaitable<void> run_prefill(std::shared_ptr<PrefillTask> task, Url url,
                                           HttpCallRequest request);
  asio::awaitable<void> health(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> metrics(const HttpRequest& http, HttpReply& reply);
  asio::awaitable<void> pass_on(const HttpRequest& http, HttpReply& reply);

  HttpCallLimits patient_calls() const;
  HttpCallRequest call(const std::string& path, const std::string& request_id,
                       std::string body) const;

  asio::any_io_executor executor_;
  GatewayOptions options_;
  WorkerPool prefill_;
  WorkerPool decode_;
  WaitingLine line_;
  GatewayMetrics metrics_;
};

}  // namespace kvlane
