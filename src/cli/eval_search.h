// `kvlane eval search`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command.h"

namespace kvlane {

void add_eval_search(CLI::App& eval, Run& run);

}  // namespace kvlane
