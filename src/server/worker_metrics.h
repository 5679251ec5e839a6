// What a worker counts and measures, for /metrics. Names and meanings: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "server/api_error.h"
#include "server/worker_role.h"

namespace kvlane {

// Thread-safe.
class WorkerMetrics {
 public:
  WorkerMetrics(Role role, const std::string& model_name);
  ~WorkerMetrics();
  WorkerMetrics(const WorkerMetrics&) = delete;
  WorkerMetrics& operator=(const WorkerMetrics&) = delete;

  // A request that the engine did not take.
  void refused(const ApiError& error);

  HttpResponse text(const EngineLoad& load) const;

 private:
  friend class RequestMeter;
  struct Families;
  std::unique_ptr<Families> families_;
};

// Follows one request that the engine has taken, where its updates are made: what a client does not
// read does not count as slowness of ours. Calls come one after the other, from any thread.
class RequestMeter {
 public:
  // `received`: when the request arrived over HTTP. `n`: its answers.
  RequestMeter(std::shared_ptr<WorkerMetrics> metrics, TimePoint received, int prompt_tokens,
               int n);

  void update(const Update& update, TimePoint now);
  // Instead of updates, when only the prompt is computed here. First tokens are told by the worker
  // that decodes, so they do not count here.
  void prefilled(const PrefillOutcome& outcome, TimePoint now);

 private:
  void begin(TimePoint now);
  void tokens(const Update& update, TimePoint now);
  void ended(const Finish& finish, TimePoint now);

  std::shared_ptr<WorkerMetrics> metrics_;
  TimePoint received_;
  int prompt_tokens_;
  bool began_ = false;
  std::vector<std::optional<TimePoint>> last_token_;  // of each answer
};

}  // namespace kvlane
