// `kvlane up`: gateway, prefill worker and decode worker as three processes on this host.
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/loaded_model.h"
#include "cli/run_service.h"
#include "cli/signals.h"
#include "server/log.h"

namespace kvlane {

namespace {

constexpr Seconds kWorkerStartPatience{900};  // large weights from a slow disk

struct UpFlags {
  ModelFlags model;
  PushFlags push;
  ServerFlags server;
};

// The children, in the order they are started; stopped together, whatever happens.
class Children {
 public:
  Children(const UpFlags& flags, int stop_descriptor)
      : flags_(flags), stop_descriptor_(stop_descriptor) {}
  ~Children() {
    for (const ChildProcess& child : children_) child.ask_to_stop();
    for (ChildProcess& child : children_) child.wait(kServiceStopPatience);
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  Status start(const std::string& role, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), role);
    arguments.insert(arguments.end(), {"--json", "--log-level", flags_.server.log_level, "--parent",
                                       std::to_string(::getpid())});
    // Not as an argument: everybody can read those.
    std::vector<std::string> environment;
    if (!flags_.server.api_key.empty()) {
      environment.push_back("KVLANE_API_KEY=" + flags_.server.api_key);
    }
    KVLANE_ASSIGN(ChildProcess child,
                  ChildProcess::start(role + " process", std::move(arguments), environment));
    children_.push_back(std::move(child));
    return {};
  }

  // The URL at which child `index` is ready.
  Result<std::string> url(std::size_t index) {
    return children_[index].read_url(stop_descriptor_, kWorkerStartPatience);
  }

  // Waits for a signal (then all is well) or for the end of a child (then it is not).
  Status wait() {
    std::vector<pollfd> entries = {{stop_descriptor_, POLLIN, 0}};
    for (const ChildProcess& child : children_) entries.push_back({child.descriptor(), POLLIN, 0});
    while (::poll(entries.data(), entries.size(), -1) <= 0) {
    }
    if (entries[0].revents != 0) return {};
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      return unavailable("the " + children_[i].name() + " " + children_[i].wait(Seconds(0)) +
                         "; the others were stopped");
    }
    return internal_error("woken by nothing");
  }

 private:
  const UpFlags& flags_;
  int stop_descriptor_;
  std::vector<ChildProcess> children_;
};

std::vector<std::string> worker_arguments(const UpFlags& flags) {
  std::vector<std::string> arguments = to_arguments(flags.model);
  arguments.insert(arguments.end(),
                   {"--port", "0", "--served-model-name", model_name(flags.model, flags.server)});
  return arguments;
}

Status run_up(const UpFlags& flags) {
  // Here, because each child would say it again.
  KVLANE_TRY(set_log_level(flags.server.log_level));
  KVLANE_TRY(check_model(flags.model));
  KVLANE_TRY(check_travels(flags.model));
  if (!flags.model.ranks_bind.empty()) {
    return invalid_argument(
        "--ranks-bind is for one worker: start prefill and decode workers by themselves");
  }
  KVLANE_ASSIGN(const EndingSignals signals, EndingSignals::install());
  Children children(flags, signals.descriptor());
  std::vector<std::string> prefill_arguments = worker_arguments(flags);
  const std::vector<std::string> push = to_arguments(flags.push);
  prefill_arguments.insert(prefill_arguments.end(), push.begin(), push.end());
  KVLANE_TRY(children.start("prefill", std::move(prefill_arguments)));
  KVLANE_TRY(children.start("decode", worker_arguments(flags)));
  KVLANE_ASSIGN(const std::string prefill, children.url(0));
  KVLANE_ASSIGN(const std::string decode, children.url(1));
  KVLANE_TRY(
      children.start("gateway", {"--prefill", prefill, "--decode", decode, "--host",
                                 flags.server.host, "--port", std::to_string(flags.server.port)}));
  ReadyLine ready;
  ready.role = "up";
  KVLANE_ASSIGN(ready.url, children.url(2));
  ready.model = model_name(flags.model, flags.server);
  print_ready(ready, flags.server.json);
  return children.wait();
}

}  // namespace

void add_up(Command& app) {
  Command command = app.add_subcommand(
      "up", "Start a gateway, a prefill worker and a decode worker on this host");
  command.footer("Example: kvlane up models/kvlane-tiny-gqa --kv-codec splitzip");
  const auto flags = std::make_shared<UpFlags>();
  add_model_flags(command, flags->model);
  hide_one_process_flags(command);
  command.get_option("--ranks-bind").hide();  // run_up() says what to do instead
  add_model_name_flag(command, flags->server);
  add_server_flags(command, flags->server);
  add_push_flags(command, flags->push);
  command.action([flags] { return run_up(*flags); });
}

}  // namespace kvlane
