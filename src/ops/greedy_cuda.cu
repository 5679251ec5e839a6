// Kernels of greedy choice. A row moves 4 bytes a token, once, and 24 bytes a part of 8192 tokens
// between the launches: 0.07 % of that. A block of 256 threads has a part's 32 KB on their way at
// once, a multiprocessor 128 KB; one row of a vocabulary of 128K is 16 blocks. A token takes some
// 10 instructions, 16 where log-probabilities are asked for, of the 27 that fit into the time of
// its bytes on an H200.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "ops/greedy_device.h"
#include "ops/greedy_gpu.h"

namespace kvlane {

namespace {

constexpr int kChooseWarps = 4;
constexpr int kChooseThreads = kChooseWarps * gpu::kWarpThreads;

__global__ void __launch_bounds__(kGreedyThreads) scan_parts(const GreedyRows rows) {
  __shared__ GreedyShared shared;
  gpu::CudaThread thread;
  scan_logits(thread, rows, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), shared);
}

__global__ void __launch_bounds__(kChooseThreads) choose_tokens(const GreedyRows rows) {
  gpu::CudaThread thread;
  const int row = static_cast<int>(blockIdx.x) * kChooseWarps + thread.warp();
  if (row < rows.rows) choose_token(thread, rows, row);
}

}  // namespace

Status greedy_on_gpu(const GreedyRows& rows, const gpu::Stream& stream) {
  KVLANE_TRY(check_greedy(rows));
  if (rows.rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  const auto count = static_cast<unsigned>(rows.rows);
  const dim3 parts(count, static_cast<unsigned>(greedy_parts(rows.vocab)));
  scan_parts<<<parts, kGreedyThreads, 0, handle>>>(rows);
  KVLANE_TRY(gpu::launched("scan of logits"));
  choose_tokens<<<(count + kChooseWarps - 1) / kChooseWarps, kChooseThreads, 0, handle>>>(rows);
  return gpu::launched("greedy choice");
}

}  // namespace kvlane
