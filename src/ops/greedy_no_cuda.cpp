// The launcher of greedy choice for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/no_cuda.h"
#include "ops/greedy_gpu.h"

namespace kvlane {

Status greedy_on_gpu(const GreedyRows&, const gpu::Stream&) { return gpu::no_cuda(); }

}  // namespace kvlane
