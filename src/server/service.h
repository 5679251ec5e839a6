// A running HTTP service of the program: its loop, its routes, its server, and what they serve.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "kvlane/status.h"
#include "server/http.h"
#include "server/prompt.h"
#include "server/worker_role.h"

namespace kvlane {

// What the server of any role needs to know.
struct ServiceOptions {
  Address bind{"127.0.0.1", 8000};  // port 0: any free one
  std::string api_key;              // asked of clients (and workers) when not empty
};

struct WorkerServiceOptions {
  ServiceOptions service;
  Role role = Role::kBoth;
  std::string model_name;
  std::optional<Address> data_plane;  // where peers reach the engine's endpoint; none with kBoth
  Seconds reservation_lease{60};      // of a decode worker: for reservations nobody attaches to
};

struct GatewayServiceOptions {
  ServiceOptions service;
  std::vector<Url> prefill;  // at least one of each
  std::vector<Url> decode;
};

class Service {
 public:
  // Serves `engine`, which it owns; `prompter` (and the engine's model and endpoint) outlive it.
  static Result<std::unique_ptr<Service>> start_worker(std::unique_ptr<Engine> engine,
                                                       const Prompter& prompter,
                                                       WorkerServiceOptions options);
  static Result<std::unique_ptr<Service>> start_gateway(GatewayServiceOptions options);
  virtual ~Service() = default;  // stop(0)

  virtual const Address& address() const = 0;  // with the real port
  // Takes no new requests and gives running ones `grace` to end.
  virtual void stop(Seconds grace) = 0;
};

}  // namespace kvlane
