// ops/products_gpu.h for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/no_cuda.h"
#include "ops/products_gpu.h"

namespace kvlane {

Result<std::unique_ptr<GpuProducts>> GpuProducts::create(int) { return gpu::no_cuda(); }

}  // namespace kvlane
