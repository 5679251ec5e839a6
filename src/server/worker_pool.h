// The workers a gateway knows: which are well, how busy they are, which one is next.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/event_loop.h"
#include "server/http.h"
#include "server/http_client.h"

namespace kvlane {

// What is known about one worker.
struct WorkerState {
  Url url;
  enum class Health { kUnknown, kWell, kFailed };
  Health health = Health::kUnknown;
  std::string problem;               // with kFailed: one sentence
  std::int64_t queued_tokens = 0;    // as the worker said last
  int requests = 0;                  // running and queued, as the worker said last
  std::int64_t assigned_tokens = 0;  // by this gateway, since the worker said so
  int in_flight = 0;                 // this gateway's requests at the worker
};

struct WorkerPoolOptions {
  std::vector<Url> urls;
  HttpHeaders headers;        // sent with every probe: the API key
  Seconds probe_interval{1};  // between two looks at a worker's /health
  Seconds probe_timeout{2};
  int unanswered_max = 5;  // so many looks in a row without an answer: the worker is lost
};

// On the loop's thread, except for the constructor and the destructor.
class WorkerPool {
  struct Prober;

 public:
  WorkerPool(EventLoop& loop, WorkerPoolOptions options);  // starts probing
  ~WorkerPool();                                           // stops it

  // As pick_worker() says (plan/routing.h), what was assigned since the last look included.
  std::optional<std::size_t> pick(const std::set<std::size_t>& excluded);
  const WorkerState& worker(std::size_t index) const;
  std::size_t size() const;
  // A request met this; /health said otherwise before.
  void report_failure(std::size_t index, const std::string& problem);
  nlohmann::json describe() const;  // for the gateway's /health
  bool any_well() const;

  // Counts a request while it is at a worker. Keeps what it needs alive.
  class Visit {
   public:
    Visit(const WorkerPool& pool, std::size_t index, std::int64_t tokens);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    void refused();  // the worker did not take it: it has no tokens of it in its queue
    // `give_up` is called, as long as the visit lasts, when the worker is lost: it was cut off, or
    // it hangs with its connections open. It must not end the visit.
    void on_lost(std::function<void(const Status&)> give_up);

   private:
    friend struct Prober;
    std::shared_ptr<Prober> prober_;
    std::size_t index_;
    std::int64_t tokens_;
    std::function<void(const Status&)> give_up_;
  };

 private:
  std::shared_ptr<Prober> prober_;
  std::size_t turn_ = 0;
};

}  // namespace kvlane
