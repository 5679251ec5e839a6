// One dispatcher, one coroutine for each conversation, all on one thread.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_load.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "server/coroutine.h"
#include "server/event_loop.h"
#include "server/http_client.h"
#include "server/json_text.h"

namespace kvlane {

namespace {

using boost::system::error_code;

// Bodies made ahead, so that requests that are due at once can leave at once.
constexpr std::size_t kPreparedBytesMax = 64 << 20;
// How exact timeouts are.
constexpr Seconds kTick{0.1};
constexpr int kTicksPerReport = 5;
// Later than any run ends; nanoseconds of it still fit the clock.
constexpr double kSecondsMax = 1e9;
constexpr std::size_t kErrorBodyBytesMax = 64 << 10;

TimePoint tick_from_now() { return SteadyClock::now() + ticks(kTick); }

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string error_kind(const Status& status) {
  switch (status.code()) {
    case Code::kTimeout: return "timeout";
    case Code::kUnavailable: return "connection";
    case Code::kCorrupt: return "protocol";
    default: return std::string(code_name(status.code()));
  }
}

// What an answer other than 200 says, in one sentence.
Status refusal(int status, const std::string& body) {
  constexpr std::size_t kMessageBytesMax = 300;
  std::string message = body.substr(0, kMessageBytesMax);
  if (const Result<nlohmann::json> object = parse_json(body); object.ok() && object->is_object()) {
    const nlohmann::json error = object->value("error", nlohmann::json());
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      message = error["message"].get<std::string>().substr(0, kMessageBytesMax);
    }
  }
  return unavailable("the server answered " + std::to_string(status) + ": " + message);
}

class Load {
 public:
  Load(const Workload& workload, const LoadOptions& options, const RequestFormat& format,
       const asio::any_io_executor& executor)
      : workload_(workload),
        options_(options),
        format_(format),
        executor_(executor),
        changed_(executor),
        tick_(executor),
        stop_signal_(executor) {}

  asio::awaitable<void> run();
  LoadOutcome take() { return std::move(outcome_); }

 private:
  // A conversation whose first request can leave at once.
  struct Prepared {
    std::optional<Dialogue> dialogue;  // when there are further turns
    std::string body;
  };
  // A request on its way, for whoever must end it early.
  struct Active {
    HttpCall* call;
    TimePoint deadline;
  };
  class ActiveGuard;

  double now() const { return seconds_since(start_); }
  TimePoint at(double seconds) const {
    return start_ + ticks(Seconds(std::min(seconds, kSecondsMax)));
  }
  bool over() const { return stopping_ || (options_.duration && now() >= *options_.duration); }
  void spawn(asio::awaitable<void> task);
  asio::awaitable<void> pause_until(asio::steady_timer& timer, TimePoint time);

  asio::awaitable<void> watch_stop();
  asio::awaitable<void> keep_time();
  void report();
  void stop();

  void prepare_ahead();
  Prepared prepare(const Conversation& conversation) const;
  HttpCallRequest call_request(std::string body) const;

  asio::awaitable<void> warm_up();
  asio::awaitable<void> warm_up_with(Turn turn);
  asio::awaitable<void> dispatch();
  asio::awaitable<bool> wait_for_place();
  double take_place(double due);
  asio::awaitable<void> converse(std::size_t index, double due, double allowed, Prepared prepared);
  asio::awaitable<void> ask(RequestRecord& record, std::string body);
  asio::awaitable<Status> exchange(HttpCall& call, RequestRecord& record, std::string body);
  void close(RequestRecord& record, const Status& status);
  std::vector<std::int32_t> answer_ids(const RequestRecord& record) const;

  const Workload& workload_;
  const LoadOptions& options_;
  const RequestFormat& format_;
  asio::any_io_executor executor_;
  asio::steady_timer changed_;  // cancelled when something happened that the dispatcher waits for
  asio::steady_timer tick_;
  asio::posix::stream_descriptor stop_signal_;
  TimePoint start_;
  bool stopping_ = false;  // by a signal: everything is given up
  bool finished_ = false;
  std::size_t live_ = 0;  // coroutines
  std::size_t conversing_ = 0;
  std::deque<double> free_places_;  // since when
  std::deque<Prepared> prepared_;
  std::size_t prepared_next_ = 0;  // index of the conversation after the last prepared one
  std::size_t prepared_bytes_ = 0;
  std::set<Active*> active_;
  std::deque<RequestRecord> records_;  // references stay valid
  LoadProgress progress_;
  LoadOutcome outcome_;
};

class Load::ActiveGuard {
 public:
  ActiveGuard(Load& load, HttpCall& call)
      : load_(load), active_{&call, SteadyClock::now() + ticks(load.options_.timeout)} {
    load_.active_.insert(&active_);
  }
  ~ActiveGuard() { load_.active_.erase(&active_); }
  ActiveGuard(const ActiveGuard&) = delete;
  ActiveGuard& operator=(const ActiveGuard&) = delete;

 private:
  Load& load_;
  Active active_;
};

void Load::spawn(asio::awaitable<void> task) {
  ++live_;
  asio::co_spawn(executor_, std::move(task), [this](const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
    --live_;
    changed_.cancel();
  });
}

// Until then, or until the timer is cancelled.
asio::awaitable<void> Load::pause_until(asio::steady_timer& timer, TimePoint time) {
  error_code ignored;
  auto token = asio::redirect_error(asio::use_awaitable, ignored);
  timer.expires_at(time);
  co_await timer.async_wait(token);
}

asio::awaitable<void> Load::run() {
  if (options_.stop_descriptor >= 0) spawn(watch_stop());
  start_ = SteadyClock::now();
  spawn(keep_time());
  if (options_.warmup > 0) co_await warm_up();
  prepare_ahead();
  free_places_.assign(options_.concurrency, 0.0);
  progress_ = {};
  progress_.planned = workload_.requests;
  const double cpu_before = thread_cpu_seconds();
  start_ = SteadyClock::now();
  if (!stopping_) co_await dispatch();
  while (conversing_ > 0) co_await pause_until(changed_, TimePoint::max());
  outcome_.client_cpu = thread_cpu_seconds() - cpu_before;
  outcome_.interrupted = stopping_;
  outcome_.start = start_;
  for (RequestRecord& record : records_) {
    outcome_.duration = std::max(outcome_.duration, record.ended);
    outcome_.records.push_back(std::move(record));
  }
  finished_ = true;
  tick_.cancel();
  error_code ignored;
  stop_signal_.cancel(ignored);
  while (live_ > 0) co_await pause_until(changed_, TimePoint::max());
}

asio::awaitable<void> Load::watch_stop() {
  // A descriptor of its own, because Asio closes what it is given.
  error_code error;
  stop_signal_.assign(::dup(options_.stop_descriptor), error);
  if (error) co_return;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  co_await stop_signal_.async_wait(asio::posix::stream_descriptor::wait_read, token);
  if (!error) stop();
}

void Load::stop() {
  stopping_ = true;
  for (const Active* active : active_) active->call->cancel(aborted("the run was ended"));
  changed_.cancel();
}

// Ends requests that take too long, and tells how the run goes.
asio::awaitable<void> Load::keep_time() {
  for (int ticks = 1; !finished_; ++ticks) {
    const TimePoint next = tick_from_now();
    co_await pause_until(tick_, next);
    const TimePoint time = SteadyClock::now();
    for (const Active* active : active_) {
      if (active->deadline > time) continue;
      active->call->cancel(timed_out("the request took longer than its timeout"));
    }
    if (ticks % kTicksPerReport == 0) report();
  }
  report();
}

void Load::report() {
  if (!options_.progress) return;
  progress_.seconds = now();
  options_.progress(progress_);
}

// --- requests before they are sent ---------------------------------------------------------------

Load::Prepared Load::prepare(const Conversation& conversation) const {
  Dialogue dialogue(format_);
  std::vector<std::int32_t> ids;
  const Turn& first = conversation.turns.front();
  append_turn_ids(first, workload_.seed, options_.vocabulary, ids);
  dialogue.ask(ids);
  Prepared prepared;
  prepared.body = dialogue.body(first.output_tokens);
  if (conversation.turns.size() > 1) prepared.dialogue.emplace(std::move(dialogue));
  return prepared;
}

void Load::prepare_ahead() {
  while (prepared_next_ < workload_.conversations.size() &&
         (prepared_.empty() || prepared_bytes_ < kPreparedBytesMax)) {
    prepared_.push_back(prepare(workload_.conversations[prepared_next_++]));
    prepared_bytes_ += prepared_.back().body.size();
  }
}

HttpCallRequest Load::call_request(std::string body) const {
  HttpCallRequest request;
  request.method = "POST";
  request.path = std::string(api_path(options_.request.api));
  request.headers.add("Content-Type", "application/json");
  request.headers.add("Accept", "text/event-stream");
  if (!options_.api_key.empty()) {
    request.headers.add("Authorization", "Bearer " + options_.api_key);
  }
  request.body = std::move(body);
  return request;
}

// --- who is sent when ----------------------------------------------------------------------------

asio::awaitable<void> Load::warm_up() {
  progress_.warming_up = true;
  progress_.planned = options_.warmup;
  const std::size_t places = options_.concurrency > 0 ? options_.concurrency : options_.warmup;
  std::vector<Turn> turns = warmup_turns(workload_, options_.warmup);
  for (Turn& turn : turns) {
    while (conversing_ >= places && !stopping_) co_await pause_until(changed_, TimePoint::max());
    if (stopping_) break;
    ++conversing_;
    spawn(warm_up_with(std::move(turn)));
  }
  while (conversing_ > 0) co_await pause_until(changed_, TimePoint::max());
  records_.clear();
}

asio::awaitable<void> Load::warm_up_with(Turn turn) {
  const Conversation conversation{0, {std::move(turn)}};
  Prepared prepared = prepare(conversation);
  RequestRecord record;
  co_await ask(record, std::move(prepared.body));
  --conversing_;
}

asio::awaitable<void> Load::dispatch() {
  for (std::size_t i = 0; i < workload_.conversations.size(); ++i) {
    double due = options_.open_loop ? workload_.conversations[i].due : 0;
    if (options_.open_loop && options_.duration && due >= *options_.duration) break;
    while (now() < due && !stopping_) {
      const TimePoint time = at(due);
      co_await pause_until(changed_, time);
    }
    const bool allowed_on = co_await wait_for_place();
    if (!allowed_on) break;
    const double allowed = take_place(due);
    if (!options_.open_loop) due = allowed;
    Prepared prepared = std::move(prepared_.front());
    prepared_.pop_front();
    prepared_bytes_ -= prepared.body.size();
    ++conversing_;
    spawn(converse(i, due, allowed, std::move(prepared)));
    prepare_ahead();
  }
}

// False when nothing new may be sent any more.
asio::awaitable<bool> Load::wait_for_place() {
  if (options_.concurrency == 0) co_return !stopping_;
  const TimePoint end = options_.duration ? at(*options_.duration) : TimePoint::max();
  while (free_places_.empty() && !over()) co_await pause_until(changed_, end);
  co_return !over();
}

// Since when the conversation could have begun.
double Load::take_place(double due) {
  if (options_.concurrency == 0) return due;
  const double free_since = free_places_.front();
  free_places_.pop_front();
  return std::max(due, free_since);
}

// --- one conversation ----------------------------------------------------------------------------

asio::awaitable<void> Load::converse(std::size_t index, double due, double allowed,
                                     Prepared prepared) {
  const Conversation& conversation = workload_.conversations[index];
  double ended = 0;
  for (std::size_t turn = 0; turn < conversation.turns.size(); ++turn) {
    RequestRecord& record = records_.emplace_back();
    record.conversation = index;
    record.turn = turn;
    record.due = due;
    record.allowed = allowed;
    record.planned_input_tokens = conversation.turns[turn].new_tokens();
    co_await ask(record, std::move(prepared.body));
    ended = record.ended;
    if (turn + 1 == conversation.turns.size() || !record.completed() || over()) break;

    std::vector<std::int32_t> ids = answer_ids(record);
    prepared.dialogue->answered(ids, record.answer.text);
    ids.clear();
    const Turn& next = conversation.turns[turn + 1];
    append_turn_ids(next, workload_.seed, options_.vocabulary, ids);
    prepared.dialogue->ask(ids);
    prepared.body = prepared.dialogue->body(next.output_tokens);
    due = allowed = ended + workload_.think_time;
    asio::steady_timer thinking(executor_);
    while (now() < due && !over()) {
      // Short pauses, so that the end of the run is noticed.
      const TimePoint pause = std::min(at(due), tick_from_now());
      co_await pause_until(thinking, pause);
    }
    if (over()) break;
  }
  if (options_.concurrency > 0) free_places_.push_back(ended);
  --conversing_;
  changed_.cancel();
}

// The answer as the next prompt repeats it.
std::vector<std::int32_t> Load::answer_ids(const RequestRecord& record) const {
  if (format_.as_text() || !record.answer.ids.empty()) return record.answer.ids;
  std::vector<std::int32_t> ids;
  const auto count = static_cast<std::size_t>(record.answer.output_tokens());
  const std::uint64_t name = std::uint64_t{record.conversation} << 32 | record.turn;
  append_token_ids(workload_.seed, Purpose::kStandIn, name, 0, count, options_.vocabulary, ids);
  return ids;
}

asio::awaitable<void> Load::ask(RequestRecord& record, std::string body) {
  HttpCallLimits limits;
  limits.connect_timeout = limits.head_timeout = options_.timeout;
  limits.read_timeout = limits.write_timeout = options_.timeout;
  HttpCall call(executor_, limits);
  const ActiveGuard guard(*this, call);
  ++progress_.sent;
  ++progress_.running;
  record.sent = now();
  const Status status = co_await exchange(call, record, std::move(body));
  close(record, status);
}

asio::awaitable<Status> Load::exchange(HttpCall& call, RequestRecord& record, std::string body) {
  const HttpCallRequest request = call_request(std::move(body));
  const Result<HttpResponse> head = co_await call.open(options_.server, request);
  if (!head.ok()) co_return head.status();
  if (head->status != 200) {
    const Result<std::string> message = co_await call.read_all(kErrorBodyBytesMax);
    record.error = "http_" + std::to_string(head->status);
    co_return refusal(head->status, message.ok() ? *message : message.status().message());
  }
  // Later turns repeat what the server said.
  const bool further_turns =
      record.turn + 1 < workload_.conversations[record.conversation].turns.size();
  AnswerReader reader(options_.keep_text || (further_turns && format_.as_text()),
                      further_turns && !format_.as_text());
  Status status;
  for (;;) {
    const Result<std::string> piece = co_await call.read();
    if (!piece.ok()) status = piece.status();
    if (!piece.ok() || piece->empty()) break;
    const std::size_t before = reader.answer().times.size();
    status = reader.add(*piece, now());
    progress_.output_tokens += reader.answer().times.size() - before;
    if (!status.ok()) {
      record.error = status.code() == Code::kUnavailable ? "server_error" : "protocol";
      break;
    }
  }
  if (status.ok()) {
    status = reader.finish();
    if (!status.ok()) record.error = "cut_short";
  }
  record.answer = reader.take();
  co_return status;
}

void Load::close(RequestRecord& record, const Status& status) {
  record.ended = now();
  record.status = status;
  record.unfinished = stopping_ && status.code() == Code::kAborted;
  if (!status.ok() && !record.unfinished && record.error.empty()) {
    record.error = error_kind(status);
  }
  --progress_.running;
  if (record.completed()) ++progress_.completed;
  if (!record.error.empty()) ++progress_.failed;
}

}  // namespace

Result<LoadOutcome> run_load(const Workload& workload, const LoadOptions& options) {
  if (options.vocabulary < 1) return invalid_argument("the vocabulary has no tokens");
  if (!options.open_loop && options.concurrency == 0) {
    return invalid_argument("a closed loop needs a number of clients");
  }
  KVLANE_ASSIGN(const RequestFormat format, RequestFormat::create(options.request));
  EventLoop loop;
  Load load(workload, options, format, loop.executor());
  loop.run_coroutine([&load] { return load.run(); });
  return load.take();
}

}  // namespace kvlane
