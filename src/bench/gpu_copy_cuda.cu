// Kernels that only move bytes. A thread has four accesses of 16 bytes on their way, a warp's are
// next to each other; blocks are many and short, as there is nothing that they keep.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_copy.h"
#include "gpu/cuda_status.h"

namespace kvlane {

namespace {

constexpr int kThreads = 256;
constexpr int kAccesses = 4;
static_assert(kThreads * kAccesses * sizeof(uint4) == kGpuCopyBytes);

__device__ std::size_t first_word() {
  return std::size_t{blockIdx.x} * (kThreads * kAccesses) + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads) copy_words(uint4* to, const uint4* from) {
  const std::size_t first = first_word();
  uint4 words[kAccesses];
#pragma unroll
  for (int i = 0; i < kAccesses; ++i) words[i] = __ldcs(from + first + i * kThreads);
#pragma unroll
  for (int i = 0; i < kAccesses; ++i) __stcs(to + first + i * kThreads, words[i]);
}

__global__ void __launch_bounds__(kThreads) read_words(const uint4* from, unsigned* sink) {
  const std::size_t first = first_word();
  uint4 words[kAccesses];
#pragma unroll
  for (int i = 0; i < kAccesses; ++i) words[i] = __ldcs(from + first + i * kThreads);
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < kAccesses; ++i) all ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
  // Hardly ever, but the compiler cannot know.
  if (all == 0xDEADBEEF) *sink = all;
}

__global__ void __launch_bounds__(kThreads) write_words(uint4* to) {
  const std::size_t first = first_word();
#pragma unroll
  for (int i = 0; i < kAccesses; ++i) {
    __stcs(to + first + i * kThreads, make_uint4(threadIdx.x, blockIdx.x, i, 0));
  }
}

cudaStream_t handle_of(const gpu::Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}
unsigned blocks_of(std::size_t bytes) { return static_cast<unsigned>(bytes / kGpuCopyBytes); }

}  // namespace

Status gpu_copy_by_kernel(const gpu::Stream& stream, std::byte* to, const std::byte* from,
                          std::size_t bytes) {
  if (bytes == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  copy_words<<<blocks_of(bytes), kThreads, 0, handle_of(stream)>>>(
      reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from));
  return gpu::launched("copy");
}

Status gpu_read(const gpu::Stream& stream, const std::byte* from, std::size_t bytes,
                std::byte* sink) {
  if (bytes == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  read_words<<<blocks_of(bytes), kThreads, 0, handle_of(stream)>>>(
      reinterpret_cast<const uint4*>(from), reinterpret_cast<unsigned*>(sink));
  return gpu::launched("read");
}

Status gpu_write(const gpu::Stream& stream, std::byte* to, std::size_t bytes) {
  if (bytes == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  write_words<<<blocks_of(bytes), kThreads, 0, handle_of(stream)>>>(reinterpret_cast<uint4*>(to));
  return gpu::launched("write");
}

}  // namespace kvlane
