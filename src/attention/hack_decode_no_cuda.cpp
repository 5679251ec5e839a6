// The launchers of decode attention on codes for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_decode_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status prepare_hack_on_gpu(const HackPrepare&, const gpu::Stream&) { return gpu::no_cuda(); }
Status attend_hack_on_gpu(const HackKind&, const HackDecodeBatch&, const DecodeUnit*, std::size_t,
                          const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
