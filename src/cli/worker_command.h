// What `serve`, `prefill` and `decode` have in common: one engine behind HTTP.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flags.h"
#include "server/worker_role.h"

namespace kvlane {

struct WorkerFlags {
  ModelFlags model;
  ServerFlags server;
  DataPlaneFlags data_plane;  // not with Role::kBoth
  PushFlags push;             // with Role::kPrefill
  int parent = 0;
};

// Loads the model, serves until a signal comes.
Status run_worker(Role role, const WorkerFlags& flags);

}  // namespace kvlane
