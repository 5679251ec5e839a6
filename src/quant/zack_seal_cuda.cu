// The kernel of sealing narrow pages, for K and for V: block (i, j) copies those of KV head j at
// place i.
//
// At head_dim 128 K or V of a page is 16 KB of rows, read once in accesses of 16 bytes, 128
// consecutive ones a row and warp, and 128 bytes a channel that is kept, written in accesses of 16
// bytes, 64 consecutive ones of K and 256 of V. Sealing is once for a token: 0.75 KB of traffic a
// KV head where half is kept, which attention reads again with every token that follows. Four loads
// a thread are on their way, 8 KB a block of threads, with 12 of them on a multiprocessor 96 KB; an
// H200 needs 40 at 0.8 us of latency.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "quant/zack_seal_device.h"
#include "quant/zack_seal_gpu.h"

namespace kvlane {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 12;  // on a multiprocessor
constexpr int kHeadDimStep = 16, kHeadDimMax = 256;

template <bool kKeys>
__global__ void __launch_bounds__(kThreads, kBlocks) seal_narrow_pages(const ZackSealBatch batch) {
  __shared__ std::uint32_t wrong;
  if (batch.places[blockIdx.x].rows < 0) return;
  gpu::CudaThread thread;
  seal_narrow_part<kKeys>(thread, batch, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                          wrong);
}

bool aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && bytes % 16 == 0;
}

}  // namespace

Status seal_narrow_on_gpu(const ZackSealBatch& batch, std::size_t count,
                          const gpu::Stream& stream) {
  if (batch.head_dim < kHeadDimStep || batch.head_dim > kHeadDimMax ||
      batch.head_dim % kHeadDimStep != 0) {
    return invalid_argument(
        "sealing narrow pages on a GPU needs a head_dim that is a multiple of 16 up to 256");
  }
  if (!aligned(batch.rows, batch.rows_block_bytes) || !aligned(batch.slabs, batch.block_bytes)) {
    return invalid_argument(
        "sealing narrow pages on a GPU needs rows and slabs at multiples of 16");
  }
  if (count == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const dim3 blocks(static_cast<unsigned>(count), static_cast<unsigned>(batch.kv_heads));
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  seal_narrow_pages<true><<<blocks, kThreads, 0, handle>>>(batch);
  KVLANE_TRY(gpu::launched("sealing of narrow K"));
  seal_narrow_pages<false><<<blocks, kThreads, 0, handle>>>(batch);
  return gpu::launched("sealing of narrow V");
}

}  // namespace kvlane
