// A kernel that only multiplies: a warp has eight tiles of 16 x 8 that do not wait for each other.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_matrix.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane {

namespace {

constexpr int kWarps = 8;
constexpr int kTiles = 8;
static_assert(kGpuMatrixStep == double{kWarps} * kTiles * 2 * 16 * 8 * 16);

__global__ void __launch_bounds__(kWarps* gpu::kWarpThreads)
    multiply_tiles(int steps, float* sink) {
  gpu::CudaThread thread;
  // Pairs of numbers, other ones in each thread: a chip that multiplies zeros runs faster. No sum
  // leaves the range of a float.
  const std::uint32_t number = 0x3C003C00U + 0x00110013U * threadIdx.x;
  const std::uint32_t a[4] = {number, number ^ 0x80000000U, number + 0x10005U, number ^ 0x8000U};
  float tiles[kTiles][4] = {};
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) thread.mma_bf16(tiles[i], a, number + i, number - i);
  }
  float all = 0;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) all += tiles[i][0] + tiles[i][1] + tiles[i][2] + tiles[i][3];
  // Never, but the compiler cannot know.
  if (all == -1.0e38F) *sink = all;
}

}  // namespace

Status gpu_multiply(const gpu::Stream& stream, int blocks, int steps, std::byte* sink) {
  if (blocks == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  multiply_tiles<<<static_cast<unsigned>(blocks), kWarps * gpu::kWarpThreads, 0,
                   static_cast<cudaStream_t>(stream.handle())>>>(steps,
                                                                 reinterpret_cast<float*>(sink));
  return gpu::launched("products");
}

}  // namespace kvlane
