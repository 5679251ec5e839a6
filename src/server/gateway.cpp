// One request over two workers: reserve, prefill and relay, retry.
// SPDX-License-Identifier: Apache-2.0
#include "server/gateway.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/coroutine.h"
#include "server/json_text.h"
#include "server/log.h"
#include "server/openai_response.h"
#include "server/sse.h"
#include "server/tcp_stream.h"

namespace kvlane {

using nlohmann::json;

namespace {

// Of answers that are not streamed: a request may ask for 1,048,576 log probabilities, some 70
// bytes each where tokens are short.
constexpr std::size_t kAnswerBytesMax = 256 << 20;
constexpr std::size_t kSmallAnswerBytesMax = 1 << 20;

// A reservation waits for nothing but its turn and, with a long prompt, the tokenizer.
constexpr Seconds kReserveTime{15};

// The head of an answer that is not streamed comes when all of it has been computed.
constexpr Seconds kAnswerTime{7 * 24 * 3600};

// How long a failure of the decode worker waits for one of the prefill worker that explains it.
constexpr Seconds kSettleTime{1};

// How often the first in the line asks whether there is room: often enough to keep workers busy,
// seldom enough to cost them nothing.
constexpr Seconds kAskAgain{0.02};

// Roughly the prompt's tokens: enough to weigh requests against each other.
std::int64_t estimate_tokens(const CompletionRequest& request) {
  constexpr std::size_t kBytesPerToken = 4;
  std::size_t bytes = request.prompt.text.size();
  for (const ChatMessage& message : request.messages) bytes += message.content.size();
  return static_cast<std::int64_t>(request.prompt.ids.size() + bytes / kBytesPerToken + 1);
}

// Whether a worker's answer is about the request, so that no other worker would say otherwise.
bool is_final(const HttpResponse& response) {
  return response.status == 400 || response.status == 413 ||
         (response.status == 404 && response.body.find("model_not_found") != std::string::npos);
}

// Makes the account of `object`, if it has one, add up to the time measured here, of which the
// request spent `waited` seconds in line.
bool complete_account(json& object, TimePoint received, double waited) {
  if (!object.is_object() || !object.contains("kvlane")) return false;
  json& extension = object["kvlane"];
  if (!extension.is_object() || !extension.contains("account")) return false;
  TimeAccount account = account_from_json(extension["account"]);
  account.queue += waited;
  close_account(account, seconds_since(received));
  extension["account"] = account_json(account);
  return true;
}

// The event as it came, or with its account completed. Quotes inside of strings are escaped in
// JSON, so the text of an answer cannot look like the field.
std::string complete_event(std::string event, TimePoint received, double waited) {
  constexpr std::string_view kPrefix = "data: ";
  if (!event.starts_with(kPrefix) || event.find("\"kvlane\":") == std::string::npos) return event;
  const std::string_view payload(event.data() + kPrefix.size(), event.size() - kPrefix.size());
  Result<json> object = parse_json(payload);
  if (!object.ok() || !complete_account(*object, received, waited)) return event;
  return sse_event(to_text(*object));
}

}  // namespace

// What the gateway knows of one client's request.
struct Gateway::Client {
  Client(Api client_api, const HttpRequest& request) : api(client_api), http(request) {}
  Api api;
  const HttpRequest& http;
  json body;
  bool stream = false;
  std::int64_t tokens = 0;
  std::optional<WaitingLine::Place> place;  // while it waits for room
  double waited = 0;                        // seconds
  bool dispatched = false;                  // a worker has been asked
};

// How an attempt with two workers ended.
struct Gateway::Outcome {
  enum class Kind {
    kGoOn,           // so far, so good
    kAnswered,       // the client has its answer, or nobody can give it one any more
    kFinal,          // `response` is the answer
    kPrefillFailed,  // `response` is, if no other worker can do better
    kDecodeFailed,
  };
  Kind kind = Kind::kGoOn;
  HttpResponse response;

  static Outcome failed(Kind blamed, const Url& url, const Status& why) {
    const std::string worker = blamed == Kind::kPrefillFailed ? "prefill" : "decode";
    ApiError error = to_api_error(why);
    error.message =
        "The " + worker + " worker " + to_string(url) + " failed: " + why.message() + ".";
    return {blamed, to_response(error)};
  }

  // Nobody was asked.
  static Outcome line_is_full(std::size_t waiting) {
    return {
        Kind::kFinal,
        to_response(to_api_error(exhausted("The line of " + std::to_string(waiting) +
                                           " who wait for a worker is full: try again later.")))};
  }

  // What an answer other than 200 means.
  static Outcome refused(Kind blamed, const Url& url, const HttpResponse& response) {
    if (is_final(response)) return {Kind::kFinal, relayed(response)};
    if (response.status == 429 || response.status >= 500) return {blamed, relayed(response)};
    return failed(blamed, url,
                  corrupt("it answered " + std::to_string(response.status) +
                          ", so it is no such worker or does not accept this gateway's key"));
  }
};

// The request to the prefill worker, in a coroutine of its own. Shared, because either side may end
// first.
struct Gateway::PrefillTask {
  PrefillTask(const asio::any_io_executor& executor, HttpCallLimits limits, const WorkerPool& pool,
              std::size_t index, std::int64_t tokens)
      : call(executor, limits), visit(pool, index, tokens), end(executor) {
    visit.on_lost([this](const Status& why) { call.cancel(why); });
  }

  // Returns when the prefill worker has answered or failed, after `patience` at the latest.
  static asio::awaitable<void> settle(std::shared_ptr<PrefillTask> task, Seconds patience) {
    boost::system::error_code error;
    auto token = asio::redirect_error(asio::use_awaitable, error);
    task->end.expires_at(deadline_after(patience));
    if (!task->ended) co_await task->end.async_wait(token);
  }

  HttpCall call;
  WorkerPool::Visit visit;
  asio::steady_timer end;  // cancelled when it has ended
  bool ended = false;
  std::optional<Outcome> failure;
  bool unreachable = false;          // no answer at all, as opposed to a bad one
  std::function<void()> on_failure;  // cleared when nobody wants to know any more
};

// Ends the prefill worker's work when the attempt is given up.
class Gateway::PrefillGuard {
 public:
  explicit PrefillGuard(std::shared_ptr<PrefillTask> task) : task_(std::move(task)) {}
  ~PrefillGuard() {
    task_->on_failure = nullptr;
    if (!succeeded_) task_->call.cancel();
  }
  PrefillGuard(const PrefillGuard&) = delete;
  PrefillGuard& operator=(const PrefillGuard&) = delete;
  void succeeded() { succeeded_ = true; }

 private:
  std::shared_ptr<PrefillTask> task_;
  bool succeeded_ = false;
};

// Gives the reservation back when the attempt ends before the decode worker has answered.
class Gateway::ReservationGuard {
 public:
  ReservationGuard(const asio::any_io_executor& executor, Url url, HttpCallRequest release)
      : executor_(executor), url_(std::move(url)), release_(std::move(release)) {}
  ~ReservationGuard() {
    if (!settled_) asio::co_spawn(executor_, send(executor_, url_, release_), asio::detached);
  }
  ReservationGuard(const ReservationGuard&) = delete;
  ReservationGuard& operator=(const ReservationGuard&) = delete;
  void settled() { settled_ = true; }

 private:
  static asio::awaitable<void> send(asio::any_io_executor executor, Url url,
                                    HttpCallRequest request) {
    HttpCallLimits limits;
    limits.head_timeout = Seconds(2);  // a worker that is gone has nothing to give back
    const Result<HttpResponse> response =
        co_await http_fetch(executor, url, request, limits, kSmallAnswerBytesMax);
    if (!response.ok()) log_debug("releasing a reservation: " + response.status().message());
  }

  asio::any_io_executor executor_;
  Url url_;
  HttpCallRequest release_;
  bool settled_ = false;
};

namespace {

WorkerPoolOptions pool_options(const GatewayOptions& options, const std::vector<Url>& urls) {
  WorkerPoolOptions pool;
  pool.urls = urls;
  pool.probe_interval = options.probe_interval;
  pool.probe_timeout = options.probe_timeout;
  return pool;
}

}  // namespace

Gateway::Gateway(EventLoop& loop, GatewayOptions options)
    : executor_(loop.executor()),
      options_(std::move(options)),
      prefill_(loop, pool_options(options_, options_.prefill)),
      decode_(loop, pool_options(options_, options_.decode)) {}

Gateway::~Gateway() = default;

void Gateway::add_routes(Router& router) {
  for (const Api api : {Api::kCompletions, Api::kChat}) {
    router.add("POST", std::string(api_path(api)),
               [this, api](const HttpRequest& http, HttpReply& reply) {
                 return complete(api, http, reply);
               });
  }
  for (const auto& [method, path] : {std::pair("GET", "/v1/models"), std::pair("POST", "/tokenize"),
                                     std::pair("POST", "/detokenize")}) {
    router.add(method, path,
               [this](const HttpRequest& http, HttpReply& reply) { return pass_on(http, reply); });
  }
  router.add(
      "GET", "/health",
      [this](const HttpRequest& http, HttpReply& reply) { return health(http, reply); }, true);
  router.add(
      "GET", "/metrics",
      [this](const HttpRequest& http, HttpReply& reply) { return metrics(http, reply); }, true);
}

HttpCallRequest Gateway::call(const std::string& path, const std::string& request_id,
                              std::string body) const {
  HttpCallRequest request;
  request.method = body.empty() ? "GET" : "POST";
  request.path = path;
  request.headers.add("X-Request-Id", request_id);
  request.headers.add("Content-Type", "application/json");
  if (!options_.api_key.empty()) {
    request.headers.add("Authorization", "Bearer " + options_.api_key);
  }
  request.body = std::move(body);
  return request;
}

// Checked here too, so that bad requests cost the workers nothing.
std::optional<ApiError> Gateway::read_client(Client& client) {
  Result<json> body = parse_json(client.http.body);
  if (!body.ok()) return ApiError{400, "The body is " + body.status().message() + ".", "", ""};
  const ApiResult<CompletionRequest> read = read_completion_request(client.api, *body);
  if (const ApiError* wrong = std::get_if<ApiError>(&read)) return *wrong;
  const CompletionRequest& request = std::get<CompletionRequest>(read);
  if (request.kv_transfer) {
    return ApiError{400, "The gateway chooses 'kv_transfer_params' itself.", "kv_transfer_params",
                    ""};
  }
  client.stream = request.stream;
  client.tokens = estimate_tokens(request);
  client.body = std::move(*body);
  client.body.erase("kv_transfer_params");
  return std::nullopt;
}

asio::awaitable<void> Gateway::complete(Api api, const HttpRequest& http, HttpReply& reply) {
  // However it ends: a client that leaves ends this coroutine with an exception.
  struct Counted {
    GatewayMetrics& metrics;
    const HttpRequest& http;
    const HttpReply& reply;
    ~Counted() {
      metrics.ended(reply.finished() ? reply.status() : 0, seconds_since(http.received));
    }
  } counted{metrics_, http, reply};
  Client client(api, http);
  HttpResponse response;
  if (const std::optional<ApiError> error = read_client(client)) {
    response = to_response(*error);
  } else {
    Outcome outcome = co_await answer_when_possible(client, reply);
    if (outcome.kind == Outcome::Kind::kAnswered) co_return;
    response = std::move(outcome.response);
  }
  co_await reply.send(response);
}

asio::awaitable<Gateway::Outcome> Gateway::answer_when_possible(Client& client, HttpReply& reply) {
  const TimePoint start = SteadyClock::now();
  const TimePoint deadline = deadline_after(options_.patience);
  if (line_.size() > 0) {
    if (line_.size() >= options_.waiting_max) co_return Outcome::line_is_full(line_.size());
    client.place.emplace(line_, executor_);
  }
  for (;;) {
    while (client.place && SteadyClock::now() < std::min(client.place->turn(), deadline)) {
      const TimePoint until = std::min(client.place->turn(), deadline);
      co_await client.place->wait(until);
    }
    if (client.place) client.waited = seconds_since(start);
    Outcome outcome = co_await try_workers(client, reply);
    const bool full = outcome.kind != Outcome::Kind::kAnswered && outcome.response.status == 429;
    const TimePoint again = deadline_after(kAskAgain);
    if (!full || again > deadline) co_return outcome;
    line_.close_until(again);
    if (client.place) {
      client.place->step_in();  // it may have stepped out
    } else if (line_.size() < options_.waiting_max) {
      client.place.emplace(line_, executor_);
    } else {
      co_return outcome;
    }
  }
}

// Up to attempts_max pairs of workers.
asio::awaitable<Gateway::Outcome> Gateway::try_workers(Client& client, HttpReply& reply) {
  std::set<std::size_t> bad_prefill;  // blamed for a failed attempt: taken again only if need be
  std::set<std::size_t> bad_decode;
  std::set<std::pair<std::size_t, std::size_t>> tried;  // never taken again
  Outcome outcome;
  for (int attempts = 1; attempts <= options_.attempts_max; ++attempts) {
    std::optional<std::size_t> prefill = prefill_.pick(bad_prefill);
    if (!prefill) prefill = prefill_.pick({});
    std::set<std::size_t> paired;
    for (const auto& [one, other] : tried) {
      if (one == *prefill) paired.insert(other);
    }
    std::set<std::size_t> unwanted = bad_decode;
    unwanted.insert(paired.begin(), paired.end());
    std::optional<std::size_t> decode = decode_.pick(unwanted);
    if (!decode) decode = decode_.pick(paired);
    if (!decode) break;
    if (attempts > 1) metrics_.retried();
    outcome = co_await attempt(client, *prefill, *decode, reply);
    if (outcome.kind == Outcome::Kind::kAnswered || outcome.kind == Outcome::Kind::kFinal) break;
    const std::string news = "request " + client.http.id + ": attempt " + std::to_string(attempts) +
                             " failed with " + std::to_string(outcome.response.status);
    if (outcome.response.status == 429) log_debug(news);
    if (outcome.response.status != 429) log_warning(news);
    tried.emplace(*prefill, *decode);
    if (outcome.kind == Outcome::Kind::kPrefillFailed) bad_prefill.insert(*prefill);
    if (outcome.kind == Outcome::Kind::kDecodeFailed) bad_decode.insert(*decode);
  }
  co_return outcome;
}

asio::awaitable<Gateway::Outcome> Gateway::reserve(const Client& client, std::size_t decode,
                                                   const TransferId& id, Address& data_plane,
                                                   ReservationGuard& reservation) {
  const Url url = decode_.worker(decode).url;
  const json body = {
      {"api", api_path(client.api)}, {"transfer_id", to_string(id)}, {"request", client.body}};
  const HttpCallRequest request = call("/kvlane/v1/reserve", client.http.id, to_text(body));
  HttpCallLimits limits = options_.calls;
  limits.head_timeout = std::min(limits.head_timeout, kReserveTime);
  const Result<HttpResponse> reserved =
      co_await http_fetch(executor_, url, request, limits, kSmallAnswerBytesMax);
  if (!reserved.ok()) {
    decode_.report_failure(decode, reserved.status().message());
    co_return Outcome::failed(Outcome::Kind::kDecodeFailed, url, reserved.status());
  }
  if (reserved->status != 200) {
    reservation.settled();
    co_return Outcome::refused(Outcome::Kind::kDecodeFailed, url, *reserved);
  }
  const Result<json> answer = parse_json(reserved->body);
  const bool usable = answer.ok() && answer->is_object() && answer->contains("host") &&
                      (*answer)["host"].is_string() && answer->contains("port") &&
                      (*answer)["port"].is_number_unsigned();
  if (!usable) {
    const Status why = corrupt("its reservation names no data plane");
    co_return Outcome::failed(Outcome::Kind::kDecodeFailed, url, why);
  }
  data_plane = {(*answer)["host"].get<std::string>(), (*answer)["port"].get<std::uint16_t>()};
  co_return Outcome();
}

asio::awaitable<void> Gateway::run_prefill(std::shared_ptr<PrefillTask> task, Url url,
                                           HttpCallRequest request) {
  Result<HttpResponse> response = co_await task->call.open(url, request);
  if (response.ok()) {
    Result<std::string> body = co_await task->call.read_all(kSmallAnswerBytesMax);
    if (body.ok()) response->body = std::move(*body);
    if (!body.ok()) response = body.status();
  }
  if (!response.ok()) {
    task->unreachable = true;
    task->failure = Outcome::failed(Outcome::Kind::kPrefillFailed, url, response.status());
  } else if (response->status != 200) {
    task->failure = Outcome::refused(Outcome::Kind::kPrefillFailed, url, *response);
  }
  task->ended = true;
  task->end.cancel();
  if (task->failure && task->on_failure) task->on_failure();
}

// For what may take as long as it takes: the worker's health is watched meanwhile.
HttpCallLimits Gateway::patient_calls() const {
  HttpCallLimits limits = options_.calls;
  limits.head_timeout = kAnswerTime;
  return limits;
}

// Sends the prompt off. What becomes of it is in the task.
void Gateway::start_prefill(const std::shared_ptr<PrefillTask>& task, const Client& client,
                            std::size_t prefill, const TransferId& id,
                            const Address& data_plane) const {
  json prompt = client.body;
  prompt["stream"] = false;
  prompt["max_tokens"] = 1;
  prompt.erase("stream_options");
  prompt.erase("max_completion_tokens");
  prompt["kv_transfer_params"] = push_params(id, data_plane);
  asio::co_spawn(
      executor_,
      run_prefill(task, prefill_.worker(prefill).url,
                  call(std::string(api_path(client.api)), client.http.id, to_text(prompt))),
      asio::detached);
}

asio::awaitable<Gateway::Outcome> Gateway::attempt(Client& client, std::size_t prefill,
                                                   std::size_t decode, HttpReply& reply) {
  // Both workers count the request from here on, or a burst would find the same ones least loaded.
  WorkerPool::Visit visit(decode_, decode, client.tokens);
  const auto task =
      std::make_shared<PrefillTask>(executor_, patient_calls(), prefill_, prefill, client.tokens);
  const TransferId id = random_transfer_id();
  const Url decode_url = decode_.worker(decode).url;
  const std::string ticket = to_text(json{{"transfer_id", to_string(id)}});
  // Before the reservation: the client may leave while it is being made.
  ReservationGuard reservation(executor_, decode_url,
                               call("/kvlane/v1/release", client.http.id, ticket));
  Address data_plane;
  if (!std::exchange(client.dispatched, true)) {
    metrics_.dispatched(seconds_since(client.http.received) - client.waited);
  }
  Outcome reserved = co_await reserve(client, decode, id, data_plane, reservation);
  if (reserved.kind != Outcome::Kind::kGoOn) {
    visit.refused();
    task->visit.refused();
    co_return reserved;
  }
  if (client.place) client.place->step_out();  // there is room: the next one may try

  HttpCall answer(executor_, patient_calls());
  visit.on_lost([&answer](const Status& why) { answer.cancel(why); });
  PrefillGuard guard(task);
  task->on_failure = [&answer] { answer.cancel(); };
  start_prefill(task, client, prefill, id, data_plane);

  const HttpCallRequest attach = call("/kvlane/v1/attach", client.http.id, ticket);
  const Result<HttpResponse> head = co_await answer.open(decode_url, attach);
  const bool decode_broke = !head.ok() && head.status().code() != Code::kAborted;
  if (decode_broke) {
    decode_.report_failure(decode, head.status().message());
    co_return Outcome::failed(Outcome::Kind::kDecodeFailed, decode_url, head.status());
  }
  // A prefill worker that dies is noticed by its decode worker too, and whose news comes first is
  // chance. Tell the cause, not the consequence.
  if (head.ok() && head->status >= 500) co_await PrefillTask::settle(task, kSettleTime);
  if (task->failure && !(head.ok() && head->status == 200)) {
    if (task->unreachable) prefill_.report_failure(prefill, "it broke a request off");
    co_return *task->failure;
  }
  if (!head.ok())
    co_return Outcome::failed(Outcome::Kind::kDecodeFailed, decode_url, head.status());
  // The first token is there, so all KV is: from here the prefill worker does not matter.
  task->on_failure = nullptr;
  reservation.settled();
  if (head->status == 200) guard.succeeded();
  const bool stream = client.stream && head->status == 200;
  if (stream) {
    co_await relay_events(client, answer, reply);
    Outcome outcome;
    outcome.kind = Outcome::Kind::kAnswered;
    co_return outcome;
  }
  HttpResponse whole = relayed(*head);
  Outcome outcome = co_await relay(client, answer, decode, std::move(whole), reply);
  co_return outcome;
}

// An answer that is not streamed, or an error.
asio::awaitable<Gateway::Outcome> Gateway::relay(const Client& client, HttpCall& answer,
                                                 std::size_t decode, HttpResponse response,
                                                 HttpReply& reply) {
  const Url url = decode_.worker(decode).url;
  Result<std::string> body = co_await answer.read_all(kAnswerBytesMax);
  if (!body.ok()) {
    co_return Outcome::failed(Outcome::Kind::kDecodeFailed, url, body.status());
  }
  response.body = std::move(*body);
  if (response.status != 200) {
    co_return Outcome::refused(Outcome::Kind::kDecodeFailed, url, response);
  }
  Result<json> object = parse_json(response.body);
  if (object.ok() && complete_account(*object, client.http.received, client.waited)) {
    response.body = to_text(*object);
  }
  co_await reply.send(response);
  Outcome outcome;
  outcome.kind = Outcome::Kind::kAnswered;
  co_return outcome;
}

// Events as they come; the next is read when the client has taken the last.
asio::awaitable<void> Gateway::relay_events(const Client& client, HttpCall& answer,
                                            HttpReply& reply) {
  HttpResponse head;
  head.content_type = kEventStreamType;
  head.headers.add("Cache-Control", "no-cache");
  Status written = co_await reply.start_stream(head);
  SseSplitter splitter;
  bool ended = false;  // [DONE] or an error event has been passed on
  bool first = true;
  Status failure;
  while (written.ok()) {
    const Result<std::string> piece = co_await answer.read();
    if (!piece.ok()) failure = piece.status();
    if (!piece.ok() || piece->empty()) break;
    const TimePoint read = SteadyClock::now();
    splitter.add(*piece);
    std::string events;
    while (std::optional<std::string> event = splitter.next()) {
      ended = ended || *event == kDoneEvent || event->starts_with("data: {\"error\"");
      events += complete_event(std::move(*event), client.http.received, client.waited);
    }
    if (splitter.too_long()) {
      failure = corrupt("an event does not end");
      break;
    }
    if (events.empty()) continue;
    written = co_await reply.write(events);
    metrics_.relayed(seconds_since(read));
    if (std::exchange(first, false)) metrics_.first_event(seconds_since(client.http.received));
  }
  if (!written.ok()) co_return;
  if (!ended) {
    metrics_.cut_short();
    if (failure.ok()) failure = unavailable("the answer ended early");
    const Status why = failure.with_context("The decode worker failed in the middle of the answer");
    log_warning("request " + client.http.id + ": " + why.message());
    const std::string event = sse_event(to_json_text(to_api_error(why)));
    reply.do_not_keep_alive();
    written = co_await reply.write(event);
    if (!written.ok()) co_return;
  }
  co_await reply.finish();
}

}  // namespace kvlane
