// The flags that say which requests there are: of those who send them, and of those who simulate
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve_bench.h"
#include "cli/command.h"

namespace kvlane {

void add_dataset_flags(CLI::App& command, DatasetOptions& dataset);
// Names that mean the same become one. To be called once flags are parsed.
void settle_dataset(DatasetOptions& dataset);

}  // namespace kvlane
