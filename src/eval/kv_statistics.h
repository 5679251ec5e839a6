// What K and V of a model look like, and what each format does to them: the task "kv".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "eval/eval_run.h"

namespace kvlane {

struct KvStatisticsTask {
  std::span<const std::int32_t> tokens;  // of one sequence, 64 to the model's context
};

// Layers whose channels and spectra are reported: all of a shallow model, else so many, evenly
// spread, the first and the last among them.
inline constexpr int kDetailedLayersMax = 8;

// The model reads the tokens once in 16 bits; formats seal and open the complete blocks of that, so
// errors do not feed on each other. One pass: the log keeps nothing of it. K is as it is cached,
// after RoPE.
//
// Measures: k_error and v_error, squared error relative to the squares, over all layers. Curves:
// "layers", the same by layer, named "k" and "v"; "channels", over the channels of a head in 16
// bits, named "k, layer 3, head 1, median" (min, p1, median, p99, max over tokens); "spectrum",
// singular values of a head's tokens x channels, named "k, layer 3, head 1".
Status run_kv_statistics_task(const KvStatisticsTask& task, EvalRun& run);

}  // namespace kvlane
