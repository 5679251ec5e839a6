// Attention over narrow pages of `zack` on a GPU, timed beside attention over rows of the same
// tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/bytes.h"
#include "bench/figures.h"
#include "gpu/device.h"

namespace kvlane {

// Adds the figures gpu_zack_... of docs/bench.md. `values` are what K and V are made of, in pieces
// of whole KiB; bfloat16. Fails, too, when a result is not a finite number.
Status bench_gpu_zack(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                      std::vector<Figure>& figures);

}  // namespace kvlane
