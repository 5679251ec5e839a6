// `kvlane prefill`: a worker that computes prompts and ships their KV.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command.h"
#include "cli/worker_command.h"

namespace kvlane {

void add_prefill(Command& app) {
  Command command =
      app.add_subcommand("prefill", "Compute prompts and ship their KV to decode workers");
  command.footer("Example: kvlane prefill models/kvlane-tiny-gqa --port 8001 --kv-codec splitzip");
  const auto flags = std::make_shared<WorkerFlags>();
  add_model_flags(command, flags->model);
  hide_one_process_flags(command);
  add_state_flags(command, flags->model.state);
  add_model_name_flag(command, flags->server);
  add_server_flags(command, flags->server);
  add_data_plane_flags(command, flags->data_plane);
  add_push_flags(command, flags->push);
  add_parent_flag(command, flags->parent);
  command.action([flags] { return run_worker(Role::kPrefill, *flags); });
}

}  // namespace kvlane
