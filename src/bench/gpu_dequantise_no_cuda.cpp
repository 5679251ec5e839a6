// bench/gpu_dequantise.h for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_dequantise.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status attend_dequantised_on_gpu(GpuDequantiser, const HackDecodeBatch&, const DecodeUnit*,
                                 std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
