// `kvlane store warm`: state that is there before anybody asks for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command_line.h"

namespace kvlane {

// As those of cli/command.h, below `store`.
void add_store_warm(Command& store);

}  // namespace kvlane
