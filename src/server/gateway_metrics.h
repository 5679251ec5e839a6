// What a gateway counts and measures, for /metrics. Names and meanings: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "server/http.h"
#include "server/worker_pool.h"

namespace kvlane {

// Thread-safe.
class GatewayMetrics {
 public:
  GatewayMetrics();
  ~GatewayMetrics();
  GatewayMetrics(const GatewayMetrics&) = delete;
  GatewayMetrics& operator=(const GatewayMetrics&) = delete;

  // A completion request is over, `seconds` after it arrived. `status` of its answer; 0: none was
  // given, because the client left.
  void ended(int status, double seconds);
  // The client has the first event of its stream, so long after its request arrived.
  void first_event(double seconds);
  // From a request's arrival to the first word to a worker, waiting in line left out.
  void dispatched(double seconds);
  // From having read a piece of a stream to the client's socket having taken it.
  void relayed(double seconds);
  void retried();
  void cut_short();  // a stream failed after its first byte

  HttpResponse text(const WorkerPool& prefill, const WorkerPool& decode, std::size_t waiting) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace kvlane
