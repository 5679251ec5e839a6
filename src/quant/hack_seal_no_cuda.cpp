// The launcher of sealing for attention on codes for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/no_cuda.h"
#include "quant/hack_seal_gpu.h"

namespace kvlane {

Status seal_hack_on_gpu(const HackSealBatch&, std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
