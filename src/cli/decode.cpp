// `kvlane decode`: a worker that continues what prefill workers computed.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/worker_command.h"

namespace kvlane {
namespace {

Status run_decode(const WorkerFlags& flags) {
  std::error_code error;
  // Somebody who has a tensor file may well try this first.
  const std::filesystem::path model = flags.model.directory;
  if (model.extension() != ".gguf" && std::filesystem::is_regular_file(model, error)) {
    return invalid_argument(flags.model.directory +
                            " is a file, and a decode worker needs a model directory; files are "
                            "decoded by `kvlane file decode`");
  }
  return run_worker(Role::kDecode, flags);
}

}  // namespace

void add_decode(Command& app) {
  Command command = app.add_subcommand("decode", "Decode what prefill workers have computed");
  command.footer("Example: kvlane decode models/kvlane-tiny-gqa --port 8002 --kv-memory 4GiB");
  const auto flags = std::make_shared<WorkerFlags>();
  add_model_flags(command, flags->model);
  hide_one_process_flags(command);
  add_state_flags(command, flags->model.state);
  add_model_name_flag(command, flags->server);
  add_server_flags(command, flags->server);
  add_data_plane_flags(command, flags->data_plane);
  add_parent_flag(command, flags->parent);
  command.action([flags] { return run_decode(*flags); });
}

}  // namespace kvlane
