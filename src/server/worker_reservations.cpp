// Reservations: a gateway has room set aside before the prompt is computed, and attaches
// afterwards.
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "server/coroutine.h"
#include "server/json_text.h"
#include "server/worker.h"

namespace kvlane {

namespace {

using nlohmann::json;

// Each holds a prompt and a promise of memory; the engine's own limit is usually reached before.
constexpr std::size_t kReservationsMax = 1024;

ApiError no_reservation() {
  return {404, "There is no reservation with this 'transfer_id'.", "transfer_id", ""};
}

}  // namespace

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
      co_await reader_.read<ApiResult<ReservationRequest>>(read, http.body.size());
  HttpResponse response;
  if (const ApiError* unreadable = std::get_if<ApiError>(&wanted)) {
    response = refuse(*unreadable);
  } else {
    const TransferId id = std::get<ReservationRequest>(wanted).id;
    const ApiResult<Address> reserved =
        make_reservation(std::get<ReservationRequest>(std::move(wanted)));
    if (const ApiError* error = std::get_if<ApiError>(&reserved)) {
      response = refuse(*error);
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
  RequestUpdates updates(engine_, executor_);
  const Status attached =
      engine_.attach(reservation->engine_request, updates.callback(meter(reservation->job)));
  if (!attached.ok()) {
    const HttpResponse response = refuse(to_api_error(attached));
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

}  // namespace kvlane
