// The launcher of sealing narrow pages for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/no_cuda.h"
#include "quant/zack_seal_gpu.h"

namespace kvlane {

Status seal_narrow_on_gpu(const ZackSealBatch&, std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
