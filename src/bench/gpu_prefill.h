// Prefill attention on a GPU, timed beside products that nothing holds up.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/bytes.h"
#include "bench/figures.h"
#include "gpu/device.h"

namespace kvlane {

// Adds the figures gpu_matrix_unit and gpu_prefill_... of docs/bench.md. `values` are what K, V and
// queries are made of; bfloat16. Fails, too, when a result is not a finite number.
Status bench_gpu_prefill(const gpu::Stream& stream, int rounds, const Bytes& values,
                         std::vector<Figure>& figures);

}  // namespace kvlane
