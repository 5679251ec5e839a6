// `kvlane serve`: one process that prefills and decodes.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command.h"
#include "cli/worker_command.h"

namespace kvlane {

void add_serve(Command& app) {
  Command command =
      app.add_subcommand("serve", "Answer requests in one process: prefill and decode");
  command.footer("Example: kvlane serve models/kvlane-tiny-gqa --port 8000");
  const auto flags = std::make_shared<WorkerFlags>();
  add_model_flags(command, flags->model);
  add_state_flags(command, flags->model.state);
  add_model_name_flag(command, flags->server);
  add_server_flags(command, flags->server);
  add_parent_flag(command, flags->parent);
  command.action([flags] { return run_worker(Role::kBoth, *flags); });
}

}  // namespace kvlane
