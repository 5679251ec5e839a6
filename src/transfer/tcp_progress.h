// What the system knows about the progress of a TCP connection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "transfer/link_speed.h"

namespace kvlane {

// Empty when the system does not tell (Linux does since 4.10).
std::optional<LinkProgress> tcp_progress(int socket);

}  // namespace kvlane
