// The flags that say which requests there are: of those who send them, and of those who simulate
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve_bench.h"
#include "bench/trace.h"
#include "cli/command_line.h"

namespace kvlane {

// Of flags of requests. Above these somebody slipped.
inline constexpr int kFlagTokensMax = kTraceTokensMax;
inline constexpr double kFlagSecondsMax = 1e6;

void add_dataset_flags(Command& command, DatasetOptions& dataset);
// Names that mean the same become one. To be called once flags are parsed.
void settle_dataset(DatasetOptions& dataset);

}  // namespace kvlane
