// A whole decode step on a GPU, in the shape of a real model, timed beside reading its bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/figures.h"
#include "gpu/device.h"

namespace kvlane {

// Adds the figures gpu_step_... of docs/bench.md; none on a device that has not even memory for one
// sequence, which `on_progress` then says. `values` are what weights, K and V are made of, in
// pieces of whole KiB; bfloat16.
Status bench_gpu_step(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                      std::vector<Figure>& figures,
                      const std::function<void(const std::string&)>& on_progress);

}  // namespace kvlane
