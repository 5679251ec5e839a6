// A thread with a queue of what happens when.
// SPDX-License-Identifier: Apache-2.0
#include "bench/paced_engine.h"

#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <thread>
#include <utility>

namespace kvlane {

// --- wire ----------------------------------------------------------------------------------------

struct PacedWire::State {
  std::mutex mutex;
  std::set<TransferId> delivered;
  std::map<TransferId, std::function<void()>> expected;
};

PacedWire::PacedWire() : state_(std::make_unique<State>()) {}
PacedWire::~PacedWire() = default;

void PacedWire::deliver(const TransferId& id) {
  std::function<void()> on_arrival;
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->expected.find(id);
    if (found == state_->expected.end()) {
      state_->delivered.insert(id);
      return;
    }
    on_arrival = std::move(found->second);
    state_->expected.erase(found);
  }
  on_arrival();
}

void PacedWire::expect(const TransferId& id, std::function<void()> on_arrival) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->delivered.erase(id) == 0) {
      state_->expected[id] = std::move(on_arrival);
      return;
    }
  }
  on_arrival();
}

void PacedWire::forget(const TransferId& id) {
  const std::lock_guard lock(state_->mutex);
  state_->expected.erase(id);
}

// --- engine --------------------------------------------------------------------------------------

namespace {

class PacedEngine : public Engine {
 public:
  PacedEngine(Pace pace, PacedWire* wire) : pace_(pace), wire_(wire), thread_([this] { run(); }) {}
  ~PacedEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    if (wire_ == nullptr) return;
    for (const auto& [id, stream] : streams_) wire_->forget(stream.transfer);
  }

  int context() const override { return 1 << 20; }
  Status validate(const GenerationRequest& request) const override {
    if (request.prompt.empty()) return invalid_argument("the prompt is empty");
    return {};
  }

  Result<RequestId> submit(GenerationRequest request, OnUpdate on_update) override {
    const std::lock_guard lock(mutex_);
    const RequestId id = add(std::move(request));
    streams_[id].on_update = std::move(on_update);
    schedule(id, SteadyClock::now() + pace_.prefill);
    return id;
  }

  Result<RequestId> prefill_and_push(GenerationRequest request, const Address&,
                                     const TransferId& transfer,
                                     OnPrefilled on_prefilled) override {
    return prefill(std::move(request), transfer, std::move(on_prefilled));
  }
  Result<RequestId> prefill_and_park(GenerationRequest request, const TransferId& transfer,
                                     OnPrefilled on_prefilled) override {
    return prefill(std::move(request), transfer, std::move(on_prefilled));
  }

  Result<RequestId> reserve(GenerationRequest request, const TransferId& transfer) override {
    RequestId id = 0;
    {
      const std::lock_guard lock(mutex_);
      id = add(std::move(request));
      streams_[id].transfer = transfer;
    }
    wire_->expect(transfer, [this, id] { arrived(id); });
    return id;
  }

  Status attach(RequestId request, OnUpdate on_update) override {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(request);
    if (found == streams_.end()) return not_found("no such reservation");
    found->second.on_update = std::move(on_update);
    if (found->second.arrived) schedule(request, SteadyClock::now());
    return {};
  }

  Result<RequestId> fetch_and_decode(GenerationRequest request, const Address&,
                                     const TransferId& transfer, OnUpdate on_update) override {
    KVLANE_ASSIGN(const RequestId id, reserve(std::move(request), transfer));
    KVLANE_TRY(attach(id, std::move(on_update)));
    return id;
  }

  void abort(RequestId request) override {
    TransferId transfer;
    {
      const std::lock_guard lock(mutex_);
      const auto found = streams_.find(request);
      if (found == streams_.end()) return;
      transfer = found->second.transfer;
      streams_.erase(found);
    }
    if (wire_ != nullptr) wire_->forget(transfer);
    changed_.notify_all();
  }

  EngineLoad load() const override {
    const std::lock_guard lock(mutex_);
    EngineLoad load;
    load.running = static_cast<int>(streams_.size());
    load.blocks_free = load.blocks_total = 1;
    return load;
  }

  void wait_idle() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return streams_.empty(); });
  }

 private:
  struct Stream {
    int prompt_tokens = 0;
    int max_tokens = 0;
    int told = 0;
    bool arrived = false;
    TransferId transfer;
    OnUpdate on_update;
    OnPrefilled on_prefilled;  // with a prefill for others
  };
  // The next thing that happens to a stream.
  struct Event {
    TimePoint due;
    RequestId stream = 0;
    bool operator<(const Event& other) const { return due > other.due; }  // the earliest on top
  };

  RequestId add(GenerationRequest request) {
    const RequestId id = ++last_id_;
    Stream& stream = streams_[id];
    stream.prompt_tokens = static_cast<int>(request.prompt.size());
    stream.max_tokens = request.max_tokens;
    return id;
  }

  void schedule(RequestId id, TimePoint due) {
    const bool earlier = events_.empty() || due < events_.top().due;
    events_.push({due, id});
    if (earlier) changed_.notify_all();
  }

  void arrived(RequestId id) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    found->second.arrived = true;
    if (found->second.on_update) schedule(id, SteadyClock::now());
  }

  Result<RequestId> prefill(GenerationRequest request, const TransferId& transfer,
                            OnPrefilled on_prefilled) {
    const std::lock_guard lock(mutex_);
    const RequestId id = add(std::move(request));
    streams_[id].on_prefilled = std::move(on_prefilled);
    streams_[id].transfer = transfer;
    schedule(id, SteadyClock::now() + pace_.prefill);
    return id;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (events_.empty()) {
        changed_.wait(lock);
      } else if (const TimePoint due = events_.top().due; SteadyClock::now() < due) {
        changed_.wait_until(lock, due);
      } else {
        const RequestId id = events_.top().stream;
        events_.pop();
        step(lock, id, due);
      }
    }
  }

  // Callbacks are made without the lock, because they may call the engine.
  void step(std::unique_lock<std::mutex>& lock, RequestId id, TimePoint due) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;  // aborted
    Stream& stream = found->second;
    const bool prefilled = stream.on_prefilled != nullptr;
    const bool last = prefilled || ++stream.told == stream.max_tokens;
    if (!last) schedule(id, due + pace_.token_interval);  // from `due`: delays do not add up
    const Stream copy = stream;
    if (last) streams_.erase(found);
    lock.unlock();
    prefilled ? tell_prefilled(copy) : tell_token(copy, last);
    lock.lock();
    if (last) changed_.notify_all();
  }

  void tell_prefilled(const Stream& stream) {
    if (wire_ != nullptr) wire_->deliver(stream.transfer);
    PrefillOutcome outcome;
    outcome.finish = finish_of(stream);
    outcome.first.push_back({0, text_now(), {}});
    stream.on_prefilled(outcome);
  }

  void tell_token(const Stream& stream, bool last) const {
    Update update;
    update.tokens.push_back(0);
    update.text = text_now();
    if (last) {
      update.ended = FinishReason::kLength;
      update.finish = finish_of(stream);
    }
    stream.on_update(update);
  }

  Finish finish_of(const Stream& stream) const {
    Finish finish;
    finish.prompt_tokens = stream.prompt_tokens;
    finish.completion_tokens = std::max(stream.told, 1);
    finish.account.prefill = Seconds(pace_.prefill).count();
    finish.account.decode = Seconds(pace_.token_interval).count() * (finish.completion_tokens - 1);
    return finish;
  }

  static std::string text_now() {
    return std::to_string(SteadyClock::now().time_since_epoch().count()) + " ";
  }

  const Pace pace_;
  PacedWire* const wire_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  RequestId last_id_ = 0;
  std::map<RequestId, Stream> streams_;
  std::priority_queue<Event> events_;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace

std::unique_ptr<Engine> make_paced_engine(Pace pace, PacedWire* wire) {
  return std::make_unique<PacedEngine>(pace, wire);
}

std::optional<std::vector<TimePoint>> token_times_of(const std::string& text) {
  std::vector<TimePoint> times;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    SteadyClock::rep ticks = 0;
    const auto [behind, error] = std::from_chars(at, end, ticks);
    if (error != std::errc() || behind == end || *behind != ' ') return std::nullopt;
    times.emplace_back(SteadyClock::duration(ticks));
    at = behind + 1;
  }
  return times;
}

Result<std::vector<std::int32_t>> PacedPrompter::encode_text(const std::string& text, bool) const {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

Result<std::vector<std::int32_t>> PacedPrompter::encode_chat(
    const std::vector<ChatMessage>& messages, bool) const {
  std::string text;
  for (const ChatMessage& message : messages) text += message.content;
  return encode_text(text, false);
}

std::string PacedPrompter::token_bytes(std::int32_t id) const {
  return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
}

}  // namespace kvlane
