// The launcher of decode attention over narrow pages for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_decode_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status attend_narrow_on_gpu(const NarrowDecodeBatch&, int, int, const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
