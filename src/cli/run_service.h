// What all serving subcommands do once their service runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "server/service.h"

namespace kvlane {

// What is printed when a service is ready.
struct ReadyLine {
  std::string role;
  std::string url;
  std::string model;  // empty: none of its own
  std::optional<Address> data_plane;
};

// {"event": "ready", "role", "url", "pid", "model"?, "data_plane"?} on one line of stdout, or a
// sentence.
void print_ready(const ReadyLine& ready, bool json);

// Prints the line, waits for Ctrl-C or SIGTERM, or until `descriptor`, if there is one, becomes
// readable; then lets running requests end for a moment.
Status run_until_signal(Service& service, const ReadyLine& ready, bool json, int descriptor = -1);

}  // namespace kvlane
