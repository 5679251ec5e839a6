// `kvlane eval search`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command_line.h"

namespace kvlane {

void add_eval_search(Command& eval);

}  // namespace kvlane
