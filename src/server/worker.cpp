// Requests to the engine, its updates to clients.
// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "server/coroutine.h"
#include "server/json_field.h"
#include "server/log.h"
#include "server/mailbox.h"
#include "server/tokenize.h"

namespace kvlane {

namespace {

using nlohmann::json;

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool failed(const Update& update) { return update.finish && !update.finish->error.ok(); }

// Why a request failed that the engine had taken. It was checked before: what is refused later is
// that two workers do not fit each other, which no change of the request mends.
ApiError late_error(const Status& why) {
  const bool refused = why.code() == Code::kInvalidArgument || why.code() == Code::kUnsupported;
  return to_api_error(refused ? corrupt(why.message()) : why);
}

}  // namespace

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
      started_(seconds_since_1970()),
      metrics_(std::make_shared<WorkerMetrics>(options_.role, options_.model_name)),
      reader_(executor_) {}

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
  router.add("POST", "/tokenize", [this](const HttpRequest& http, HttpReply& reply) {
    return convert(&tokenize, http, reply);
  });
  router.add("POST", "/detokenize", [this](const HttpRequest& http, HttpReply& reply) {
    return convert(&detokenize, http, reply);
  });
  router.add("GET", "/v1/models", route(&Worker::models));
  router.add("GET", "/health", route(&Worker::health), true);
  router.add("GET", "/metrics", route(&Worker::metrics), true);
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
  if (Refusal refusal = check_model(job.request.model, options_.model_name)) {
    return std::move(*refusal);
  }
  if (std::optional<ApiError> error = check_role(job.request)) return std::move(*error);
  const bool prefills_for_others =
      job.request.kv_transfer && job.request.kv_transfer->kind != KvTransfer::Kind::kFetch;
  // The first token is all that is made here; how many may follow is the decode worker's business.
  if (prefills_for_others) {
    job.request.max_tokens = 1;
    job.request.min_tokens = std::min(job.request.min_tokens, 1);
  }
  ApiResult<GenerationRequest> generation = make_generation_request(job.request, prompter_);
  if (ApiError* error = std::get_if<ApiError>(&generation)) return std::move(*error);
  job.generation = std::get<GenerationRequest>(std::move(generation));
  job.head.request_id = http.id;
  job.head.model = options_.model_name;
  job.head.created = seconds_since_1970();
  job.head.prompt_tokens = static_cast<int>(job.generation.prompt.size());
  job.received = http.received;
  return job;
}

HttpResponse Worker::refuse(const ApiError& error) const {
  metrics_->refused(error);
  return to_response(error);
}

std::shared_ptr<RequestMeter> Worker::meter(const Job& job) const {
  return std::make_shared<RequestMeter>(metrics_, job.received, job.head.prompt_tokens,
                                        job.request.n);
}

Result<RequestId> Worker::submit(Job& job, OnUpdate on_update) {
  const std::optional<KvTransfer>& transfer = job.request.kv_transfer;
  if (!transfer) return engine_.submit(std::move(job.generation), std::move(on_update));
  return engine_.fetch_and_decode(std::move(job.generation), transfer->peer, transfer->id,
                                  std::move(on_update));
}

asio::awaitable<void> Worker::complete(Api api, const HttpRequest& http, HttpReply& reply) {
  // A copy of the request, because the reader may still be at it when the client has left.
  const std::function<ApiResult<Job>()> read = [this, api, copy = http] {
    return make_job(parse_completion_request(api, copy.body), copy);
  };
  ApiResult<Job> made = co_await reader_.read<ApiResult<Job>>(read, http.body.size());
  if (const ApiError* error = std::get_if<ApiError>(&made)) {
    const HttpResponse response = refuse(*error);
    co_await reply.send(response);
    co_return;
  }
  Job job = std::get<Job>(std::move(made));
  if (job.request.kv_transfer && job.request.kv_transfer->kind != KvTransfer::Kind::kFetch) {
    co_await prefill(std::move(job), reply);
    co_return;
  }
  RequestUpdates updates(engine_, executor_);
  const Result<RequestId> request = submit(job, updates.callback(meter(job)));
  if (!request.ok()) {
    const HttpResponse response = refuse(to_api_error(request.status()));
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
  OnPrefilled on_prefilled = [mailbox, meter = meter(job)](const PrefillOutcome& outcome) {
    meter->prefilled(outcome, SteadyClock::now());
    mailbox->push(outcome);
  };
  AbortGuard guard(engine_);
  const Result<RequestId> request =
      park ? engine_.prefill_and_park(std::move(job.generation), transfer.id,
                                      std::move(on_prefilled))
           : engine_.prefill_and_push(std::move(job.generation), transfer.peer, transfer.id,
                                      // cppcheck-suppress accessMoved ; only one branch runs
                                      std::move(on_prefilled));
  if (!request.ok()) {
    const HttpResponse response = refuse(to_api_error(request.status()));
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
  const KvBytes& kv = outcome.finish.kv;
  log_debug("request " + job.head.request_id + ": " + std::to_string(kv.raw) + " bytes of KV " +
            (park ? "parked" : "sent") + " as " + std::to_string(kv.shipped) + " with codec " +
            kv.codec);
  close_account(outcome.finish.account, seconds_since(job.received));
  const json params = park ? parked_params(transfer.id, *options_.data_plane, options_.engine_id,
                                           outcome.finish.prompt_tokens)
                           : json();
  std::vector<Update> choices;
  for (PrefillOutcome::First& first : outcome.first) {
    Update& choice = choices.emplace_back();
    choice.choice = static_cast<int>(choices.size()) - 1;
    choice.tokens.push_back(first.token);
    if (first.logprobs) choice.logprobs.push_back(std::move(*first.logprobs));
    choice.text = std::move(first.text);
    choice.ended = FinishReason::kLength;
  }
  CompletionFormat format(job.request, prompter_, job.head);
  const HttpResponse response = json_response(format.whole(choices, outcome.finish, params));
  co_await reply.send(response);  // KV parked for a router that has left goes with its lease
}

// The status of the response waits for the first update: an error before it is an HTTP error.
asio::awaitable<void> Worker::answer(Job job, RequestUpdates& updates, HttpReply& reply) {
  Update update = co_await updates.next();
  if (job.request.stream && !failed(update)) {
    co_await stream(job, std::move(update), updates, reply);
    co_return;
  }
  std::vector<Update> choices(job.request.n);
  for (std::size_t i = 0; i < choices.size(); ++i) choices[i].choice = static_cast<int>(i);
  for (;;) {
    append_update(choices[update.choice], update);
    if (update.finish) break;
    update = co_await updates.next();
  }
  HttpResponse response;
  if (failed(update)) {
    response = to_response(late_error(update.finish->error));
  } else {
    close_account(update.finish->account, seconds_since(job.received));
    CompletionFormat format(job.request, prompter_, job.head);
    response = json_response(format.whole(choices, *update.finish, json()));
  }
  co_await reply.send(response);
}

asio::awaitable<void> Worker::stream(const Job& job, Update update, RequestUpdates& updates,
                                     HttpReply& reply) {
  CompletionFormat format(job.request, prompter_, job.head);
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

}  // namespace kvlane
