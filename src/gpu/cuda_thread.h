// The thread of a CUDA kernel, as device code wants it (gpu/device_code.h). For .cu files only;
// blocks are one-dimensional and made of whole warps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_code.h"

namespace kvlane::gpu {

class CudaThread {
 public:
  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ int lane() const { return index() % kWarpThreads; }
  __device__ int warp() const { return index() / kWarpThreads; }
  __device__ int warps() const { return threads() / kWarpThreads; }

  __device__ void sync_block() { __syncthreads(); }
  __device__ void sync_warp() { __syncwarp(); }
  __device__ std::uint32_t shuffle(std::uint32_t x, int lane) { return __shfl_sync(kAll, x, lane); }
  __device__ std::uint32_t shuffle_up(std::uint32_t x, int by, int width) {
    return __shfl_up_sync(kAll, x, static_cast<unsigned>(by), width);
  }
  __device__ std::uint32_t ballot(bool condition) { return __ballot_sync(kAll, condition); }
  __device__ std::uint32_t sum(std::uint32_t x) { return __reduce_add_sync(kAll, x); }
  __device__ void add(std::uint32_t& word, std::uint32_t x) { atomicAdd(&word, x); }

 private:
  static constexpr unsigned kAll = ~0U;
};

}  // namespace kvlane::gpu
