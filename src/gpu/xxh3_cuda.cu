// The kernel of checksums. A piece moves each of its bytes once: a thread has 256 bytes of loads on
// their way, a block of threads 64 KB, as much as it adds up in a round, in 178 instructions a warp
// and 8 KB: 46 bytes a cycle and scheduler at most. What cannot be spread over threads is the step
// behind each 1024 bytes, a chain of an addition, two exclusive ors and a product in 64 bits: some
// 30 cycles (by the latencies of its instructions; not measured). So a piece, which is one block of
// threads, is bound to some 34 bytes a cycle, 60 GB/s at 1.75 GHz, and the eight pieces of a launch
// to eight times that: more than disks bring.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "gpu/xxh3_device.h"
#include "gpu/xxh3_gpu.h"

namespace kvlane::gpu {

namespace {

__global__ void __launch_bounds__(kXxh3Threads) sum_pieces(const Xxh3Task* tasks) {
  __shared__ Xxh3Shared shared;
  CudaThread thread;
  sum_xxh3(thread, tasks[blockIdx.x], shared);
}

}  // namespace

Status xxh3_on_gpu(const Xxh3Task* tasks, std::size_t count, const Stream& stream) {
  if (count == 0) return {};
  KVLANE_TRY(use_device(stream.device()));
  sum_pieces<<<static_cast<unsigned>(count), kXxh3Threads, 0,
               static_cast<cudaStream_t>(stream.handle())>>>(tasks);
  return launched("checksums");
}

}  // namespace kvlane::gpu
