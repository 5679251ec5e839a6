// Probing /health and choosing.
// SPDX-License-Identifier: Apache-2.0
#include "server/worker_pool.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>

#include "plan/routing.h"
#include "server/coroutine.h"
#include "server/json_text.h"
#include "server/log.h"
#include "server/tcp_stream.h"

namespace kvlane {

namespace {

using nlohmann::json;

constexpr std::size_t kHealthBytesMax = 64 << 10;

std::int64_t number_or_zero(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

// Takes over what /health says.
Status read_health(const std::string& body, WorkerState& worker) {
  const Result<json> health = parse_json(body);
  if (!health.ok() || !health->is_object() || !health->contains("load") ||
      !(*health)["load"].is_object()) {
    return corrupt("its /health is not a kvlane worker's");
  }
  const json& load = (*health)["load"];
  worker.queued_tokens = number_or_zero(load, "queued_tokens");
  worker.requests =
      static_cast<int>(number_or_zero(load, "running") + number_or_zero(load, "queued"));
  return {};
}

const char* health_name(WorkerState::Health health) {
  switch (health) {
    case WorkerState::Health::kUnknown: return "unknown";
    case WorkerState::Health::kWell: return "ok";
    case WorkerState::Health::kFailed: return "failed";
  }
  return "unknown";
}

WorkerLoad load_of(const WorkerState& worker) {
  return {worker.health == WorkerState::Health::kFailed,
          worker.queued_tokens + worker.assigned_tokens,
          std::max(worker.requests, worker.in_flight)};
}

}  // namespace

// Shared by the pool and one coroutine for each worker.
struct WorkerPool::Prober : std::enable_shared_from_this<WorkerPool::Prober> {
  Prober(const asio::any_io_executor& loop_executor, WorkerPoolOptions pool_options)
      : executor(loop_executor),
        options(std::move(pool_options)),
        workers(options.urls.size()),
        unanswered(options.urls.size()),
        visits(options.urls.size()) {
    for (std::size_t i = 0; i < options.urls.size(); ++i) workers[i].url = options.urls[i];
  }

  asio::awaitable<void> watch(std::size_t index);
  asio::awaitable<Status> probe(std::size_t index);
  void give_up_visits(std::size_t index);

  asio::any_io_executor executor;
  WorkerPoolOptions options;
  std::vector<WorkerState> workers;
  std::vector<int> unanswered;           // looks in a row; by worker
  std::vector<std::set<Visit*>> visits;  // by worker
  bool stopped = false;
  std::set<asio::steady_timer*> pauses;
};

asio::awaitable<Status> WorkerPool::Prober::probe(std::size_t index) {
  HttpCallLimits limits;
  limits.connect_timeout = options.probe_timeout;
  limits.head_timeout = options.probe_timeout;
  limits.read_timeout = options.probe_timeout;
  HttpCallRequest request;
  request.path = "/health";
  request.headers = options.headers;
  WorkerState& worker = workers[index];
  // What is assigned while the question is under way may not be in the answer: it stays counted.
  const std::int64_t assigned_before = worker.assigned_tokens;
  const Url url = worker.url;
  const Result<HttpResponse> health =
      co_await http_fetch(executor, url, request, limits, kHealthBytesMax);
  unanswered[index] = health.ok() ? 0 : unanswered[index] + 1;
  if (!health.ok()) co_return health.status();
  if (health->status != 200) {
    co_return unavailable("its /health answers " + std::to_string(health->status));
  }
  const Status read = read_health(health->body, worker);
  if (read.ok()) {
    worker.assigned_tokens = std::max(std::int64_t{0}, worker.assigned_tokens - assigned_before);
  }
  co_return read;
}

// Requests at a process that has ended break by themselves; those at one that hangs, or behind a
// cut line, would wait for ever.
void WorkerPool::Prober::give_up_visits(std::size_t index) {
  for (const Visit* visit : visits[index]) {
    if (visit->give_up_) visit->give_up_(unavailable("it does not answer any more"));
  }
}

asio::awaitable<void> WorkerPool::Prober::watch(std::size_t index) {
  const std::shared_ptr<Prober> self = shared_from_this();
  asio::steady_timer pause(executor);
  pauses.insert(&pause);
  boost::system::error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  while (!stopped) {
    const Status status = co_await probe(index);
    if (stopped) break;
    WorkerState& worker = workers[index];
    const auto health = status.ok() ? WorkerState::Health::kWell : WorkerState::Health::kFailed;
    if (health != worker.health) {
      const std::string name = to_string(worker.url);
      if (status.ok()) log_info(name + " is well");
      if (!status.ok()) log_warning(name + " failed: " + status.message());
    }
    worker.health = health;
    worker.problem = status.message();
    if (unanswered[index] >= options.unanswered_max) give_up_visits(index);
    pause.expires_at(deadline_after(options.probe_interval));
    co_await pause.async_wait(token);
  }
  pauses.erase(&pause);
}

WorkerPool::WorkerPool(EventLoop& loop, WorkerPoolOptions options)
    : prober_(std::make_shared<Prober>(loop.executor(), std::move(options))) {
  for (std::size_t i = 0; i < prober_->workers.size(); ++i) {
    asio::co_spawn(prober_->executor, prober_->watch(i), asio::detached);
  }
}

WorkerPool::~WorkerPool() {
  asio::post(prober_->executor, [prober = prober_] {
    prober->stopped = true;
    for (asio::steady_timer* pause : prober->pauses) pause->cancel();
  });
}

std::optional<std::size_t> WorkerPool::pick(const std::set<std::size_t>& excluded) {
  std::vector<WorkerLoad> loads;
  for (const WorkerState& worker : prober_->workers) loads.push_back(load_of(worker));
  const auto picked = pick_worker(loads, excluded, turn_);
  if (picked) turn_ = *picked + 1;
  return picked;
}

const WorkerState& WorkerPool::worker(std::size_t index) const { return prober_->workers[index]; }

std::size_t WorkerPool::size() const { return prober_->workers.size(); }

void WorkerPool::report_failure(std::size_t index, const std::string& problem) {
  WorkerState& worker = prober_->workers[index];
  worker.health = WorkerState::Health::kFailed;
  worker.problem = problem;
}

json WorkerPool::describe() const {
  json list = json::array();
  for (const WorkerState& worker : prober_->workers) {
    json entry = {{"url", to_string(worker.url)},
                  {"status", health_name(worker.health)},
                  {"queued_tokens", worker.queued_tokens + worker.assigned_tokens},
                  {"requests", worker.requests},
                  {"in_flight", worker.in_flight}};
    if (!worker.problem.empty()) entry["problem"] = worker.problem;
    list.push_back(std::move(entry));
  }
  return list;
}

bool WorkerPool::any_well() const {
  for (const WorkerState& worker : prober_->workers) {
    if (worker.health == WorkerState::Health::kWell) return true;
  }
  return false;
}

WorkerPool::Visit::Visit(const WorkerPool& pool, std::size_t index, std::int64_t tokens)
    : prober_(pool.prober_), index_(index), tokens_(tokens) {
  ++prober_->workers[index_].in_flight;
  prober_->workers[index_].assigned_tokens += tokens;
  prober_->visits[index_].insert(this);
}

WorkerPool::Visit::~Visit() {
  --prober_->workers[index_].in_flight;
  prober_->visits[index_].erase(this);
}

void WorkerPool::Visit::on_lost(std::function<void(const Status&)> give_up) {
  give_up_ = std::move(give_up);
}

void WorkerPool::Visit::refused() {
  // A probe may have taken them off already.
  std::int64_t& assigned = prober_->workers[index_].assigned_tokens;
  assigned = std::max(std::int64_t{0}, assigned - tokens_);
}

}  // namespace kvlane
