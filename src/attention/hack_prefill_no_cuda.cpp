// The launcher of prefill attention on codes for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_prefill_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status attend_hack_prefill_on_gpu(const HackKind&, const HackPrefillBatch&, const PrefillUnit*,
                                  std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
