// The launchers of decode attention for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "attention/decode_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status attend_on_gpu(const DecodeBatch&, const DecodeUnit*, std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}
Status merge_on_gpu(const DecodeMerge&, const gpu::Stream&) { return gpu::no_cuda(); }

}  // namespace kvlane
