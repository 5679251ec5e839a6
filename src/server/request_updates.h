// One request between the engine's thread and the coroutine that answers the client.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "server/coroutine.h"
#include "server/mailbox.h"
#include "server/worker_metrics.h"

namespace kvlane {

// Tokens of one update at most, when updates are merged for a slow reader: with all their log
// probabilities they are an event of some 3 MB, below what a gateway takes.
inline constexpr std::size_t kMergedTokensMax = 1024;

// Adds an update to an older one of the same choice. The end of a request stays on its own, for it
// is told after everything else.
MergeResult merge_updates(Update& older, Update& newer);

// Adds a choice's next update, whatever its size.
void append_update(Update& answer, const Update& next);

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

// The updates of one request, and its abortion when this ends before it does.
class RequestUpdates {
 public:
  RequestUpdates(Engine& engine, const asio::any_io_executor& executor)
      : guard_(engine), mailbox_(std::make_shared<Mailbox<Update>>(executor, merge_updates)) {}

  // `meter` hears of every update first.
  OnUpdate callback(std::shared_ptr<RequestMeter> meter) const {
    return [mailbox = mailbox_, meter = std::move(meter)](const Update& update) {
      meter->update(update, SteadyClock::now());
      mailbox->push(update);
    };
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

}  // namespace kvlane
