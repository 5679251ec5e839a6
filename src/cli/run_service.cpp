// Ready, wait, stop.
// SPDX-License-Identifier: Apache-2.0
#include "cli/run_service.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/environment.h"
#include "cli/signals.h"

namespace kvlane {

namespace {

// Shorter than what service managers and our own scripts wait before they kill.
constexpr Seconds kGrace{3};

}  // namespace

void print_ready(const ReadyLine& ready, bool json) {
  if (!json) {
    std::cout << "kvlane " << ready.role << ": ";
    if (!ready.model.empty()) std::cout << ready.model << " on ";
    std::cout << ready.url;
    if (ready.data_plane) std::cout << ", data plane " << to_string(*ready.data_plane);
    std::cout << std::endl;
    return;
  }
  nlohmann::json line = {
      {"event", "ready"}, {"role", ready.role}, {"url", ready.url}, {"pid", ::getpid()}};
  if (!ready.model.empty()) line["model"] = ready.model;
  if (ready.data_plane) line["data_plane"] = to_string(*ready.data_plane);
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

Status run_until_signal(Service& service, const ReadyLine& ready, bool json, int descriptor) {
  KVLANE_ASSIGN(const EndingSignals signals, EndingSignals::install());
  print_ready(ready, json);
  std::array<pollfd, 2> entries = {{{signals.descriptor(), POLLIN, 0}, {descriptor, POLLIN, 0}}};
  while (::poll(entries.data(), entries.size(), -1) <= 0) {
  }
  service.stop(kGrace);
  return {};
}

}  // namespace kvlane
