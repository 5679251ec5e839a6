// Kernels of sealing for attention on codes, one for K and one for V, by axes and width of heads:
// block (i, j) seals the page of KV head j at place i.
//
// A page at head_dim 128 is 16 KB of rows each for K and V, read once in 64 consecutive bytes a
// warp, and 2.4 KB each of codes and metadata at 2 bits, of which codes are written in accesses of
// 16 bytes. Sealing is once for a token: 0.6 KB of traffic a KV head, where attention reads it
// again with every token that follows. No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "quant/hack_seal_device.h"
#include "quant/hack_seal_gpu.h"

namespace kvlane {

namespace {

constexpr int kThreads = kHackSealWarps * gpu::kWarpThreads;

template <int kDim, bool kKeys, bool kBoth>
__global__ void __launch_bounds__(kThreads, 1) seal_pages(const HackSealBatch batch) {
  __shared__ HackSealShared<kDim> shared;
  if (batch.places[blockIdx.x].rows < 0) return;
  gpu::CudaThread thread;
  const auto part =
      seal_part_of<kKeys>(batch, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  seal_part<kKeys, kBoth>(thread, part, shared);
}

using Kernel = void (*)(const HackSealBatch);

template <int kDim>
Kernel kernel_in(bool keys, bool both) {
  if (keys) return both ? seal_pages<kDim, true, true> : seal_pages<kDim, true, false>;
  return both ? seal_pages<kDim, false, true> : seal_pages<kDim, false, false>;
}
Kernel kernel_of(int head_dim, bool keys, bool both) {
  return head_dim <= 64    ? kernel_in<64>(keys, both)
         : head_dim <= 128 ? kernel_in<128>(keys, both)
                           : kernel_in<256>(keys, both);
}

bool aligned(const void* address, std::size_t bytes, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0 && bytes % to == 0;
}

}  // namespace

Status seal_hack_on_gpu(const HackSealBatch& batch, std::size_t count, const gpu::Stream& stream) {
  if (batch.head_dim < hack::kHeadDimStep || batch.head_dim > hack::kHeadDimMax ||
      batch.head_dim % hack::kHeadDimStep != 0) {
    return invalid_argument("sealing on a GPU needs a head_dim that is a multiple of 16 up to 256");
  }
  if (batch.k.meta != hack::Meta::kFp16 || batch.v.meta != hack::Meta::kFp16) {
    return invalid_argument("sealing on a GPU needs metadata in fp16");
  }
  if (!aligned(batch.rows, batch.rows_block_bytes, 16) ||
      !aligned(batch.slabs, batch.block_bytes, 64)) {
    return invalid_argument("sealing on a GPU needs rows at multiples of 16 bytes, slabs of 64");
  }
  if (count == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const dim3 blocks(static_cast<unsigned>(count), static_cast<unsigned>(batch.kv_heads));
  for (const bool keys : {true, false}) {
    const bool both = (keys ? batch.k : batch.v).axis == hack::Axis::kBoth;
    kernel_of(batch.head_dim, keys,
              both)<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(batch);
    KVLANE_TRY(gpu::launched("sealing for attention on codes"));
  }
  return {};
}

}  // namespace kvlane
