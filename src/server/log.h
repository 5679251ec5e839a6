// Log lines of the server and the program, to stderr through spdlog, which stays out of all
// headers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// "debug", "info", "warning", "error" or "off"; kInvalidArgument lists them. The start value is
// "warning". Requests are logged at "info".
Status set_log_level(std::string_view level);

// Thread-safe. Text from outside is escaped where it is not printable ASCII.
void log_debug(std::string_view text);
void log_info(std::string_view text);
void log_warning(std::string_view text);

// One line for one request; status 0: the client left before there was one.
void log_request(std::string_view method, std::string_view path, int status, std::string_view id,
                 double seconds);

}  // namespace kvlane
