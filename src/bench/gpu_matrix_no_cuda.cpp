// bench/gpu_matrix.h for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_matrix.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status gpu_multiply(const gpu::Stream&, int, int, std::byte*) { return gpu::no_cuda(); }

}  // namespace kvlane
