// Requests to the engine, its updates to clients.
// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "server/coroutine.h"
#include "server/json_text.h"
#include "server/log.h"
#include "server/mailbox.h"
#include "server/openai_response.h"

namespace kvlane {

namespace {

using nlohmann::json;

// Each holds a prompt and a promise of memory; the engine's own limit is usually reached before.
constexpr std::size_t kReservationsMax = 1024;

// Longer bodies are read on another thread, so that streams do not stutter. Shorter ones take less
// than a millisecond or so.
constexpr std::size_t kReadHereBytesMax = 16 << 10;

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void merge_updates(Update& older, Update&& newer) {
  older.tokens.insert(older.tokens.end(), newer.tokens.begin(), newer.tokens.end());
  older.text += newer.text;
  older.ended = newer.ended;
  older.finish = std::move(newer.finish);
}

HttpResponse json_response(std::string text) {
  HttpResponse response;
  response.body = std::move(text);
  return response;
}

ApiError no_reservation() {
  return {404, "There is no reservation with this 'transfer_id'.", "transfer_id", ""};
}

bool failed(const Update& update) { return update.finish && !update.finish->error.ok(); }

// Why a request failed that the engine had taken. It was checked before: what is refused later is
// that two workers do not fit each other, which no change of the request mends.
ApiError late_error(const Status& why) {
  const bool refused = why.code() == Code::kInvalidArgument || why.code() == Code::kUnsupported;
  return to_api_error(refused ? corrupt(why.message()) : why);
}

// Aborts the engine's request unless it has ended: the client left, or cannot be told any more.
class AbortGuard {
 public:
  explicit AbortGuard(Engine& engine) : engine_(engine) {}
  ~AbortGuard() {
    if (request_) engine_.abort(*request_);
  }
  AbortGuard(const AbortGuard&) = delete;
  AbortGuard& operator=(const AbortGuard&) = delete;
  void watch(RequestId request) { request_ = request; }
  void ended() { request_.reset(); }

 private:
  Engine& engine_;
  std::optional<RequestId> request_;
};

}  // namespace

// The updates of one request on their way from the engine's thread, and its abortion.
class Worker::Updates {
 public:
  Updates(Engine& engine, const asio::any_io_executor& executor)
      : guard_(engine), mailbox_(std::make_shared<Mailbox<Update>>(executor, merge_updates)) {}

  OnUpdate callback() const {
    return [mailbox = mailbox_](const Update& update) { mailbox->push(update); };
  }
  void watch(RequestId request) { guard_.watch(request); }

  asio::awaitable<Update> next() {
    Update update = co_await mailbox_->take();
    if (update.finish) guard_.ended();
    co_return update;
  }

 private:
  AbortGuard guard_;
  std::shared_ptr<Mailbox<Update>> mailbox_;
};

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kBoth: return "both";
    case Role::kPrefill: return "prefill";
    case Role::kDecode: return "decode";
  }
  return "unknown";
}

Worker::Worker(Engine& engine, const Prompter& prompter, EventLoop& loop, WorkerOptions options)
    : engine_(engine),
      prompter_(prompter),
      executor_(loop.executor()),
      options_(std::move(options)),
      started_(seconds_since_1970()) {}

void Worker::add_routes(Router& router) {
  for (const Api api : {Api::kCompletions, Api::kChat}) {
    router.add("POST", std::string(api_path(api)),
               [this, api](const HttpRequest& http, HttpReply& reply) {
                 return complete(api, http, reply);
               });
  }
  const auto route =
      [this](asio::awaitable<void> (Worker::*method)(const HttpRequest&, HttpReply&)) {
        return [this, method](const HttpRequest& http, HttpReply& reply) {
          return (this->*method)(http, reply);
        };
      };
  if (options_.role == Role::kDecode) {
    router.add("POST", "/kvlane/v1/reserve", route(&Worker::reserve));
    router.add("POST", "/kvlane/v1/attach", route(&Worker::attach));
    router.add("POST", "/kvlane/v1/release", route(&Worker::release));
  }
  router.add("GET", "/v1/models", route(&Worker::models));
  router.add("GET", "/health", route(&Worker::health), true);
}

// What this worker's role does not take, it says clearly: a silent local answer would hide that a
// router is misconfigured.
std::optional<ApiError> Worker::check_role(const CompletionRequest& request) const {
  const auto refuse = [](std::string message) {
    return ApiError{400, std::move(message), "kv_transfer_params", ""};
  };
  const bool prefills_for_others =
      request.kv_transfer && request.kv_transfer->kind != KvTransfer::Kind::kFetch;
  if (request.kv_transfer && !options_.data_plane) {
    return refuse("This worker serves requests alone and takes no 'kv_transfer_params'.");
  }
  if (options_.role == Role::kPrefill && !prefills_for_others) {
    return refuse(
        "This worker only prefills for others ('do_remote_decode'); send requests to a gateway or "
        "a "
        "decode worker.");
  }
  if (options_.role == Role::kDecode && prefills_for_others) {
    return refuse("This worker decodes; 'do_remote_decode' is for prefill workers.");
  }
  if (prefills_for_others && request.stream) {
    return ApiError{400, "'stream' must be false with 'do_remote_decode'.", "stream", ""};
  }
  return {};
}

ApiResult<Worker::Job> Worker::make_job(ApiResult<CompletionRequest> parsed,
                                        const HttpRequest& http) const {
  if (ApiError* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  Job job;
  job.request = std::get<CompletionRequest>(std::move(parsed));
  if (!job.request.model.empty() && job.request.model != options_.model_name) {
    return ApiError{404,
                    "The model `" + job.request.model.substr(0, 100) +
                        "` does not exist; this is `" + options_.model_name + "`.",
                    "model", "model_not_found"};
  }
  if (std::optional<ApiError> error = check_role(job.request)) return std::move(*error);
  const bool prefills_for_others =
      job.request.kv_transfer && job.request.kv_transfer->kind != KvTransfer::Kind::kFetch;
  // The first token is all that is made here; how many may follow is the decode worker's business.
  if (prefills_for_others) job.request.max_tokens = 1;
  ApiResult<GenerationRequest> generation = make_generation_request(job.request, prompter_);
  if (ApiError* error = std::get_if<ApiError>(&generation)) return std::move(*error);
  job.generation = std::get<GenerationRequest>(std::move(generation));
  job.request_id = http.id;
  job.created = seconds_since_1970();
  job.received = http.received;
  return job;
}

template <class T>
asio::awaitable<ApiResult<T>> Worker::read_request(std::function<ApiResult<T>()> read,
                                                   std::size_t body_bytes) {
  if (body_bytes <= kReadHereBytesMax) co_return read();
  const auto mailbox = std::make_shared<Mailbox<ApiResult<T>>>(executor_);
  asio::post(reader_, [mailbox, read] { mailbox->push(read()); });
  ApiResult<T> result = co_await mailbox->take();
  co_return result;
}

asio::awaitable<void> Worker::complete(Api api, const HttpRequest& http, HttpReply& reply) {
  // A copy of the request, because the reader may still be at it when the client has left.
  const std::function<ApiResult<Job>()> read = [this, api, copy = http] {
    return make_job(parse_completion_request(api, copy.body), copy);
  };
  ApiResult<Job> made = co_await read_request<Job>(read, http.body.size());
  if (const ApiError* error = std::get_if<ApiError>(&made)) {
    const HttpResponse response = to_response(*error);
    co_await reply.send(response);
    co_return;
  }
  Job job = std::get<Job>(std::move(made));
  const std::optional<KvTransfer> transfer = job.request.kv_transfer;
  if (transfer && transfer->kind != KvTransfer::Kind::kFetch) {
    co_await prefill(std::move(job), reply);
    co_return;
  }
  Updates updates(engine_, executor_);
  const Result<RequestId> request =
      transfer ? engine_.fetch_and_decode(std::move(job.generation), transfer->peer, transfer->id,
                                          updates.callback())
               : engine_.submit(std::move(job.generation), updates.callback());
  if (!request.ok()) {
    const HttpResponse response = to_response(to_api_error(request.status()));
    co_await reply.send(response);
    co_return;
  }
  updates.watch(*request);
  co_await answer(std::move(job), updates, reply);
}

asio::awaitable<void> Worker::prefill(Job job, HttpReply& reply) {
  KvTransfer transfer = *job.request.kv_transfer;
  const bool park = transfer.kind == KvTransfer::Kind::kPark;
  if (park) transfer.id = random_transfer_id();
  const auto mailbox = std::make_shared<Mailbox<PrefillOutcome>>(executor_);
  OnPrefilled on_prefilled = [mailbox](const PrefillOutcome& outcome) { mailbox->push(outcome); };
  AbortGuard guard(engine_);
  const Result<RequestId> request =
      park ? engine_.prefill_and_park(std::move(job.generation), transfer.id,
                                      std::move(on_prefilled))
           : engine_.prefill_and_push(std::move(job.generation), transfer.peer, transfer.id,
                                      // cppcheck-suppress accessMoved ; only one branch runs
                                      std::move(on_prefilled));
  if (!request.ok()) {
    const HttpResponse response = to_response(to_api_error(request.status()));
    co_await reply.send(response);
    co_return;
  }
  guard.watch(*request);
  PrefillOutcome outcome = co_await mailbox->take();
  guard.ended();
  if (!outcome.finish.error.ok()) {
    const HttpResponse response = to_response(late_error(outcome.finish.error));
    co_await reply.send(response);
    co_return;
  }
  close_account(outcome.finish.account, seconds_since(job.received));
  const CompletionFormat format(job.request, job.request_id, options_.model_name, job.created);
  const json params = park ? parked_params(transfer.id, *options_.data_plane, options_.engine_id,
                                           outcome.finish.prompt_tokens)
                           : json();
  Update first;
  first.tokens.push_back(outcome.first[0].token);
  first.text = outcome.first[0].text;
  first.ended = FinishReason::kLength;
  const HttpResponse response = json_response(format.whole(first, outcome.finish, params));
  co_await reply.send(response);  // KV parked for a router that has left goes with its lease
}

// The status of the response waits for the first update: an error before it is an HTTP error.
asio::awaitable<void> Worker::answer(Job job, Updates& updates, HttpReply& reply) {
  Update update = co_await updates.next();
  if (job.request.stream && !failed(update)) {
    co_await stream(job, std::move(update), updates, reply);
    co_return;
  }
  while (!update.finish) {
    Update next = co_await updates.next();
    merge_updates(update, std::move(next));
  }
  HttpResponse response;
  if (failed(update)) {
    response = to_response(late_error(update.finish->error));
  } else {
    close_account(update.finish->account, seconds_since(job.received));
    const CompletionFormat format(job.request, job.request_id, options_.model_name, job.created);
    response = json_response(format.whole(update, *update.finish, json()));
  }
  co_await reply.send(response);
}

asio::awaitable<void> Worker::stream(const Job& job, Update update, Updates& updates,
                                     HttpReply& reply) {
  CompletionFormat format(job.request, job.request_id, options_.model_name, job.created);
  HttpResponse head;
  head.content_type = kEventStreamType;
  head.headers.add("Cache-Control", "no-cache");
  for (;;) {
    std::string events;
    if (failed(update)) {
      // Too late for a status; no [DONE] either, so that nobody takes this for a whole answer.
      events = sse_event(to_json_text(late_error(update.finish->error)));
      reply.do_not_keep_alive();
    } else {
      if (update.finish) close_account(update.finish->account, seconds_since(job.received));
      events = format.events(update);
    }
    Status written;
    if (!reply.started()) {
      head.body = std::move(events);
      written = co_await reply.start_stream(head);
    } else {
      written = co_await reply.write(events);
    }
    if (!written.ok()) co_return;
    if (update.finish) break;
    update = co_await updates.next();
  }
  co_await reply.finish();
}

void Worker::forget_expired_reservations() {
  const TimePoint now = SteadyClock::now();
  for (auto it = reservations_.begin(); it != reservations_.end();) {
    if (it->second.expires > now) {
      ++it;
      continue;
    }
    engine_.abort(it->second.engine_request);
    it = reservations_.erase(it);
  }
}

// Body: {"api": "/v1/completions", "transfer_id": "...", "request": {...}}.
ApiResult<Worker::ReservationRequest> Worker::read_reservation(const HttpRequest& http) const {
  const Result<json> body = parse_json(http.body);
  if (!body.ok()) return ApiError{400, "The body is " + body.status().message() + ".", "", ""};
  const bool complete = body->is_object() && body->size() == 3 && body->contains("api") &&
                        body->contains("transfer_id") && body->contains("request");
  if (!complete) {
    return ApiError{400, "The body must have 'api', 'transfer_id' and 'request'.", "", ""};
  }
  const json& path = (*body)["api"];
  const json& id_text = (*body)["transfer_id"];
  if (path != api_path(Api::kChat) && path != api_path(Api::kCompletions)) {
    return ApiError{400, "'api' must be the path of a completion API.", "api", ""};
  }
  const Result<TransferId> id =
      parse_transfer_id(id_text.is_string() ? id_text.get<std::string>() : std::string());
  if (!id.ok()) return ApiError{400, "'transfer_id' is not a transfer id.", "transfer_id", ""};
  const Api api = path == api_path(Api::kChat) ? Api::kChat : Api::kCompletions;
  ApiResult<Job> made = make_job(read_completion_request(api, (*body)["request"]), http);
  if (ApiError* error = std::get_if<ApiError>(&made)) return std::move(*error);
  ReservationRequest wanted{*id, std::get<Job>(std::move(made))};
  if (wanted.job.request.kv_transfer) {
    return ApiError{400, "A reservation takes no 'kv_transfer_params'.", "kv_transfer_params", ""};
  }
  return wanted;
}

ApiResult<Address> Worker::make_reservation(ReservationRequest wanted) {
  forget_expired_reservations();
  if (reservations_.contains(wanted.id)) {
    return ApiError{400, "'transfer_id' is in use.", "transfer_id", ""};
  }
  if (reservations_.size() >= kReservationsMax) {
    return to_api_error(exhausted("There are " + std::to_string(kReservationsMax) +
                                  " reservations that nobody has attached to."));
  }
  const Result<RequestId> request = engine_.reserve(std::move(wanted.job.generation), wanted.id);
  if (!request.ok()) return to_api_error(request.status());
  const auto lease = std::chrono::duration_cast<SteadyClock::duration>(options_.reservation_lease);
  reservations_.emplace(wanted.id,
                        Reservation{std::move(wanted.job), *request, SteadyClock::now() + lease});
  return *options_.data_plane;
}

void Worker::give_back(const TransferId& id) {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return;
  engine_.abort(found->second.engine_request);
  reservations_.erase(found);
}

asio::awaitable<void> Worker::reserve(const HttpRequest& http, HttpReply& reply) {
  // Nobody will use a reservation whose answer was not heard.
  struct Undo {
    Worker& worker;
    std::optional<TransferId> id;
    ~Undo() {
      if (id) worker.give_back(*id);
    }
  } undo{*this, std::nullopt};
  const std::function<ApiResult<ReservationRequest>()> read = [this, copy = http] {
    return read_reservation(copy);
  };
  ApiResult<ReservationRequest> wanted =
      co_await read_request<ReservationRequest>(read, http.body.size());
  HttpResponse response;
  if (const ApiError* unreadable = std::get_if<ApiError>(&wanted)) {
    response = to_response(*unreadable);
  } else {
    const TransferId id = std::get<ReservationRequest>(wanted).id;
    const ApiResult<Address> reserved =
        make_reservation(std::get<ReservationRequest>(std::move(wanted)));
    if (const ApiError* error = std::get_if<ApiError>(&reserved)) {
      response = to_response(*error);
    } else {
      undo.id = id;
      const Address& data_plane = std::get<Address>(reserved);
      const json body = {{"host", data_plane.host}, {"port", data_plane.port}};
      response = json_response(to_text(body));
    }
  }
  const Status sent = co_await reply.send(response);
  if (sent.ok()) undo.id.reset();
}

// Body: {"transfer_id": "..."}.
std::optional<Worker::Reservation> Worker::take_reservation(const HttpRequest& http) {
  forget_expired_reservations();
  const Result<json> body = parse_json(http.body);
  const bool has_id = body.ok() && body->is_object() && body->contains("transfer_id") &&
                      (*body)["transfer_id"].is_string();
  if (!has_id) return std::nullopt;
  const Result<TransferId> id = parse_transfer_id((*body)["transfer_id"].get<std::string>());
  const auto found = id.ok() ? reservations_.find(*id) : reservations_.end();
  if (found == reservations_.end()) return std::nullopt;
  Reservation reservation = std::move(found->second);
  reservations_.erase(found);
  return reservation;
}

// The answer has the form that the reserved request asked for.
asio::awaitable<void> Worker::attach(const HttpRequest& http, HttpReply& reply) {
  std::optional<Reservation> reservation = take_reservation(http);
  if (!reservation) {
    const HttpResponse response = to_response(no_reservation());
    co_await reply.send(response);
    co_return;
  }
  Updates updates(engine_, executor_);
  const Status attached = engine_.attach(reservation->engine_request, updates.callback());
  if (!attached.ok()) {
    const HttpResponse response = to_response(to_api_error(attached));
    co_await reply.send(response);
    co_return;
  }
  updates.watch(reservation->engine_request);
  co_await answer(std::move(reservation->job), updates, reply);
}

// Gives up a reservation that nobody will attach to.
asio::awaitable<void> Worker::release(const HttpRequest& http, HttpReply& reply) {
  const std::optional<Reservation> reservation = take_reservation(http);
  if (reservation) engine_.abort(reservation->engine_request);
  const HttpResponse response =
      reservation ? json_response(R"({"released":true})") : to_response(no_reservation());
  co_await reply.send(response);
}

asio::awaitable<void> Worker::health(const HttpRequest&, HttpReply& reply) {
  const EngineLoad load = engine_.load();
  json body = {{"status", "ok"},
               {"role", role_name(options_.role)},
               {"model", options_.model_name},
               {"load",
                {{"running", load.running},
                 {"queued", load.queued},
                 {"queued_tokens", load.queued_tokens},
                 {"blocks_free", load.blocks_free},
                 {"blocks_total", load.blocks_total}}}};
  if (options_.data_plane) body["data_plane"] = to_string(*options_.data_plane);
  const HttpResponse response = json_response(to_text(body));
  co_await reply.send(response);
}

asio::awaitable<void> Worker::models(const HttpRequest&, HttpReply& reply) {
  const json model = {{"id", options_.model_name},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "kvlane"},
                      {"max_model_len", prompter_.context()},
                      {"vocab_size", prompter_.vocabulary()}};
  const json body = {{"object", "list"}, {"data", json::array({model})}};
  const HttpResponse response = json_response(to_text(body));
  co_await reply.send(response);
}

}  // namespace kvlane
