// `kvlane gateway`: one OpenAI API in front of prefill and decode workers.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/run_service.h"
#include "cli/signals.h"
#include "server/log.h"
#include "server/service.h"

namespace kvlane {

namespace {

struct GatewayFlags {
  ServerFlags server;
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  int parent = 0;
};

Result<std::vector<Url>> parse_urls(const std::vector<std::string>& texts) {
  std::vector<Url> urls;
  for (const std::string& text : texts) {
    KVLANE_ASSIGN(Url url, parse_url(text));
    urls.push_back(std::move(url));
  }
  return urls;
}

Status run_gateway(const GatewayFlags& flags) {
  if (flags.parent != 0) end_with_parent(flags.parent);
  KVLANE_TRY(set_log_level(flags.server.log_level));
  GatewayServiceOptions options;
  options.service.bind = {flags.server.host, flags.server.port};
  options.service.api_key = flags.server.api_key;
  KVLANE_ASSIGN(options.prefill, parse_urls(flags.prefill));
  KVLANE_ASSIGN(options.decode, parse_urls(flags.decode));
  KVLANE_ASSIGN(const std::unique_ptr<Service> service, Service::start_gateway(std::move(options)));
  ReadyLine ready;
  ready.role = "gateway";
  ready.url = "http://" + to_string(service->address());
  return run_until_signal(*service, ready, flags.server.json);
}

}  // namespace

void add_gateway(Command& app) {
  Command command =
      app.add_subcommand("gateway", "Share requests out over prefill and decode workers");
  command.footer(
      "Example: kvlane gateway --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002");
  const auto flags = std::make_shared<GatewayFlags>();
  command.add_option("--prefill", flags->prefill, "URLs of the prefill workers").required();
  command.add_option("--decode", flags->decode, "URLs of the decode workers").required();
  add_server_flags(command, flags->server);
  add_parent_flag(command, flags->parent);
  command.action([flags] { return run_gateway(*flags); });
}

}  // namespace kvlane
