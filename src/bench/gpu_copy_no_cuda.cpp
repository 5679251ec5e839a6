// bench/gpu_copy.h for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_copy.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status gpu_copy_by_kernel(const gpu::Stream&, std::byte*, const std::byte*, std::size_t) {
  return gpu::no_cuda();
}
Status gpu_read(const gpu::Stream&, const std::byte*, std::size_t, std::byte*) {
  return gpu::no_cuda();
}
Status gpu_write(const gpu::Stream&, std::byte*, std::size_t) { return gpu::no_cuda(); }

}  // namespace kvlane
