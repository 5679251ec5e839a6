// The launchers of prefill attention for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "attention/prefill_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status attend_prefill_on_gpu(const PrefillBatch&, const PrefillUnit*, std::size_t,
                             const gpu::Stream&) {
  return gpu::no_cuda();
}
Status attend_window_on_gpu(const PrefillBatch&, const SealedSeen&, const PrefillUnit*, std::size_t,
                            const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
