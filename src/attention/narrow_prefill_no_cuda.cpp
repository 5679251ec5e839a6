// The launcher of prefill attention over narrow pages for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_prefill_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status attend_narrow_prefill_on_gpu(const NarrowPrefillBatch&, int, const PrefillUnit*, std::size_t,
                                    const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
