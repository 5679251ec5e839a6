// For tests: an engine without a model. Token i of answer c is prompt[0] + 100 c + i, its text
// "<token> "; its log probability is -i, and -i - 1 that of the next likely one, the token after
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/prompt.h"

namespace kvlane {

// Carries "KV" from fake prefill engines to fake decode engines.
class FakeWire {
 public:
  struct Arrival {
    bool arrived = false;
    Status failure;
  };
  void deliver(const TransferId& id, Status failure = {}) {
    const std::lock_guard lock(mutex_);
    arrivals_[id] = {true, std::move(failure)};
    changed_.notify_all();
  }
  // Waits until the KV is there, or `given_up` says that nobody wants it any more.
  template <class GivenUp>
  Status wait(const TransferId& id, GivenUp given_up) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (arrivals_[id].arrived) return arrivals_[id].failure;
      if (given_up()) return aborted("given up");
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
  }
  bool has(const TransferId& id) {
    const std::lock_guard lock(mutex_);
    return arrivals_[id].arrived;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<TransferId, Arrival> arrivals_;
};

// What a fake engine does; set before requests come.
struct FakeEnginePlan {
  std::chrono::milliseconds token_delay{0};
  std::chrono::milliseconds prefill_delay{0};
  Status refuse;              // what every submit returns, unless ok
  int running_max = 1 << 30;  // reserved requests not yet over; beyond: kExhausted
  int fail_after = -1;        // tokens after which generation fails
  Status failure = corrupt("a slab failed its checksum");
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(FakeEnginePlan plan = {}, FakeWire* wire = nullptr)
      : plan_(std::move(plan)), wire_(wire) {}
  ~FakeEngine() override {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  int context() const override { return 100; }
  Status validate(const GenerationRequest& request) const override {
    if (request.prompt.empty()) return invalid_argument("the prompt is empty");
    return {};
  }
  Result<RequestId> submit(GenerationRequest request, OnUpdate on_update) override {
    return start([this, request, on_update](RequestId id) { generate(id, request, on_update); });
  }
  Result<RequestId> prefill_and_push(GenerationRequest request, const Address& peer,
                                     const TransferId& transfer,
                                     OnPrefilled on_prefilled) override {
    last_peer_ = peer;
    return prefill(std::move(request), transfer, std::move(on_prefilled));
  }
  Result<RequestId> prefill_and_park(GenerationRequest request, const TransferId& transfer,
                                     OnPrefilled on_prefilled) override {
    return prefill(std::move(request), transfer, std::move(on_prefilled));
  }
  Result<RequestId> reserve(GenerationRequest request, const TransferId& transfer) override {
    KVLANE_TRY(plan_.refuse);
    const std::lock_guard lock(mutex_);
    if (static_cast<int>(reserved_.size()) + decoding_ >= plan_.running_max) {
      ++refused_;
      return exhausted("all places are taken");
    }
    const RequestId id = ++last_id_;
    reserved_[id] = {std::move(request), transfer};
    return id;
  }
  Status attach(RequestId id, OnUpdate on_update) override {
    const std::lock_guard lock(mutex_);
    const auto found = reserved_.find(id);
    if (found == reserved_.end()) return not_found("no such reservation");
    const auto [request, transfer] = found->second;
    reserved_.erase(found);
    decode(id, request, transfer, std::move(on_update));
    return {};
  }
  Result<RequestId> fetch_and_decode(GenerationRequest request, const Address& peer,
                                     const TransferId& transfer, OnUpdate on_update) override {
    KVLANE_TRY(plan_.refuse);
    const std::lock_guard lock(mutex_);
    last_peer_ = peer;
    if (!wire_->has(transfer)) return not_found("nothing is parked under this id");
    decode(++last_id_, request, transfer, std::move(on_update));
    return last_id_;
  }
  void abort(RequestId request) override {
    const std::lock_guard lock(mutex_);
    aborted_.insert(request);
    reserved_.erase(request);
  }
  EngineLoad load() const override { return {1, 2, 34, 5, 6}; }
  void wait_idle() override {}

  std::set<RequestId> aborted_requests() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  // No reservation waits and nothing is being decoded for others.
  bool idle() const {
    const std::lock_guard lock(mutex_);
    return reserved_.empty() && decoding_ == 0;
  }
  int refused() const {
    const std::lock_guard lock(mutex_);
    return refused_;
  }
  Address last_peer() const {
    const std::lock_guard lock(mutex_);
    return last_peer_;
  }
  std::vector<GenerationRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  template <class Work>
  Result<RequestId> start(Work work) {
    KVLANE_TRY(plan_.refuse);
    const std::lock_guard lock(mutex_);
    const RequestId id = ++last_id_;
    threads_.emplace_back([work, id] { work(id); });
    return id;
  }
  void decode(RequestId id, const GenerationRequest& request, const TransferId& transfer,
              OnUpdate on_update) {
    ++decoding_;
    threads_.emplace_back([this, id, request, transfer, on_update] {
      const Status arrived = wire_->wait(transfer, [&] { return given_up(id); });
      if (arrived.ok()) {
        generate(id, request, on_update);
      } else {
        finish(request, 0, on_update, arrived);
      }
      const std::lock_guard lock(mutex_);
      --decoding_;
    });
  }
  Result<RequestId> prefill(GenerationRequest request, const TransferId& transfer,
                            OnPrefilled on_prefilled) {
    return start([this, request, transfer, on_prefilled](RequestId id) {
      remember(request);
      const TimePoint end = SteadyClock::now() + plan_.prefill_delay;
      while (SteadyClock::now() < end && !given_up(id)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      PrefillOutcome outcome;
      if (given_up(id)) outcome.finish.error = aborted("aborted");
      if (plan_.fail_after >= 0) outcome.finish.error = plan_.failure;
      wire_->deliver(transfer, outcome.finish.error);
      outcome.finish.prompt_tokens = static_cast<int>(request.prompt.size());
      outcome.finish.completion_tokens = request.n;
      outcome.finish.account.prefill = 0.001;
      outcome.finish.kv = {200, 150, "splitzip"};
      for (int choice = 0; choice < request.n; ++choice) {
        const Update update = nth_token(request, choice, 0);
        PrefillOutcome::First& first = outcome.first.emplace_back();
        first.token = update.tokens[0];
        first.text = update.text;
        if (request.logprobs) first.logprobs = update.logprobs[0];
      }
      on_prefilled(outcome);
    });
  }
  static Update nth_token(const GenerationRequest& request, int choice, int i) {
    Update update;
    update.choice = choice;
    const std::int32_t token = request.prompt[0] + 100 * choice + i;
    update.tokens = {token};
    update.text = std::to_string(token) + " ";
    if (!request.logprobs) return update;
    TokenLogprobs& logprobs = update.logprobs.emplace_back();
    logprobs.logprob = static_cast<float>(-i);
    for (int rank = 0; rank < *request.logprobs; ++rank) {
      logprobs.top.push_back({token + rank, static_cast<float>(-i - rank)});
    }
    return update;
  }
  // The answers take turns; all but the last say that they ended before the request does.
  void generate(RequestId id, const GenerationRequest& request, const OnUpdate& on_update) {
    remember(request);
    for (int i = 0; i < request.max_tokens; ++i) {
      std::this_thread::sleep_for(plan_.token_delay);
      if (given_up(id)) return finish(request, i, on_update, aborted("aborted"));
      if (i == plan_.fail_after) return finish(request, i, on_update, plan_.failure);
      for (int choice = 0; choice < request.n; ++choice) {
        on_update(nth_token(request, choice, i));
      }
    }
    for (int choice = 0; choice + 1 < request.n; ++choice) {
      Update update;
      update.choice = choice;
      update.ended = FinishReason::kLength;
      on_update(update);
    }
    finish(request, request.max_tokens, on_update, {});
  }
  static void finish(const GenerationRequest& request, int tokens, const OnUpdate& on_update,
                     Status error) {
    Update last;
    last.choice = request.n - 1;
    if (error.ok()) last.ended = FinishReason::kLength;
    Finish& end = last.finish.emplace();
    end.error = std::move(error);
    end.prompt_tokens = static_cast<int>(request.prompt.size());
    end.cached_tokens = end.prompt_tokens - 1;
    end.completion_tokens = tokens * request.n;
    end.account.prefill = 0.001;
    end.account.decode = 0.002;
    end.kv = {200, 150, "splitzip"};
    on_update(last);
  }
  void remember(const GenerationRequest& request) {
    const std::lock_guard lock(mutex_);
    seen_.push_back(request);
  }
  bool given_up(RequestId id) const {
    const std::lock_guard lock(mutex_);
    return stopping_ || aborted_.contains(id);
  }

  FakeEnginePlan plan_;
  FakeWire* wire_;
  mutable std::mutex mutex_;
  RequestId last_id_ = 0;
  std::set<RequestId> aborted_;
  std::map<RequestId, std::pair<GenerationRequest, TransferId>> reserved_;
  std::vector<GenerationRequest> seen_;
  int decoding_ = 0;
  int refused_ = 0;
  Address last_peer_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

// One token for each byte of text; chats are the contents joined, if there is a "template". With
// `special`, texts begin with BOS, and chats end with '>'.
class FakePrompter : public Prompter {
 public:
  static constexpr std::int32_t kHalfCharacter = 195;  // its only byte begins one of two

  explicit FakePrompter(bool has_template = true, bool special = false)
      : has_template_(has_template), special_(special) {}
  Result<std::vector<std::int32_t>> encode_text(const std::string& text,
                                                bool add_special) const override {
    std::vector<std::int32_t> ids(text.begin(), text.end());
    if (add_special && special_) ids.insert(ids.begin(), bos());
    return ids;
  }
  Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages,
                                                bool add_generation_prompt) const override {
    if (!has_template_) {
      return invalid_argument("This model has no chat template; use /v1/completions.");
    }
    std::string text;
    for (const ChatMessage& message : messages) text += message.content;
    if (add_generation_prompt && special_) text += ">";
    return encode_text(text, false);
  }
  std::string token_bytes(std::int32_t id) const override {
    if (id == kHalfCharacter) return "\xc3";
    if (id == bos()) return "<s>";
    return id < 0 || id >= vocabulary() ? "" : std::to_string(id) + " ";
  }
  bool is_special(std::int32_t id) const override { return id == bos(); }
  std::int32_t bos() const override { return 7; }
  int vocabulary() const override { return 1000; }
  int context() const override { return 100; }

 private:
  bool has_template_;
  bool special_;
};

}  // namespace kvlane
