// Kernels of decode attention, one a width of heads and number of column tiles.
//
// Block i has unit i: four warps that share its pages, 16 tokens of each for a warp. A page is read
// once a KV head (and 16 query heads; 8 where head_dim is over 128), in accesses of 16 bytes: 64
// consecutive bytes a K row and 128 a V row at a time. Bytes of loads on their way, a warp: K and V
// of 16 tokens, 4 KB at head_dim 64, 8 KB at 128; at 256 K or V, 8 KB. A multiprocessor:
//   head_dim           64      64, 16 heads    128     128, 16 heads    256
//   blocks             4       3               3       2                2
//   bytes at most      64 KB   48 KB           96 KB   64 KB            64 KB
// An H200 needs 40 KB at 0.8 us of latency. Of its issue slots a tile of 16 tokens and 8 heads
// takes about a tenth of what its 8 KB of traffic last. No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include "attention/decode_device.h"
#include "attention/decode_gpu.h"
#include "attention/decode_merge_device.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "gpu/early_launch.h"

namespace kvlane {

namespace {

constexpr int kThreads = kDecodeWarps * gpu::kWarpThreads;

constexpr int blocks_of(int dim, int tiles) {
  for (const DecodeKernelShape& kernel : kDecodeKernels) {
    if (kernel.dim == dim && kernel.tiles == tiles) return kernel.blocks;
  }
  return 0;
}

template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, blocks_of(kDim, kTiles))
    attend_units(const DecodeBatch batch, const DecodeUnit* units) {
  __shared__ DecodeShared<kDim, kTiles> shared;
  gpu::CudaThread thread;
  thread.let_next_begin();
  const DecodeUnit unit = units[blockIdx.x];
  attend_unit<kDim, kTiles>(thread, batch, unit, shared);
}

__global__ void __launch_bounds__(kThreads) merge_rows(const DecodeMerge merge) {
  gpu::CudaThread thread;
  const int row = static_cast<int>(blockIdx.x) * kDecodeWarps + thread.warp();
  if (row < merge.sequences * merge.heads) merge_states(thread, merge, row);
}

// Of few rows each has a block of threads.
constexpr int kFewRows = 2048;

__global__ void __launch_bounds__(kThreads) merge_few_rows(const DecodeMerge merge) {
  static_assert(decode_merge::kRuns == kDecodeWarps);
  __shared__ DecodeMergeShared shared;
  gpu::CudaThread thread;
  merge_states_together(thread, merge, static_cast<int>(blockIdx.x), shared);
}

using Kernel = void (*)(const DecodeBatch, const DecodeUnit*);

Kernel kernel_of(const DecodeKernelShape& shape) {
  switch (shape.dim * 8 + shape.tiles) {
    case 64 * 8 + 1: return attend_units<64, 1>;
    case 64 * 8 + 2: return attend_units<64, 2>;
    case 128 * 8 + 1: return attend_units<128, 1>;
    case 128 * 8 + 2: return attend_units<128, 2>;
    case 256 * 8 + 1: return attend_units<256, 1>;
    default: return nullptr;
  }
}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

Status misaligned() {
  return invalid_argument("decode attention on a GPU needs addresses that are multiples of 16");
}

cudaStream_t handle_of(const gpu::Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

}  // namespace

Status attend_on_gpu(const DecodeBatch& batch, const DecodeUnit* units, std::size_t count,
                     const gpu::Stream& stream) {
  KVLANE_TRY(decode_shape(batch.heads, batch.kv_heads, batch.head_dim, 1).status());
  if (!aligned(batch.slabs) || !aligned(batch.q) || !aligned(batch.out) || !aligned(units) ||
      batch.block_bytes % 16 != 0) {
    return misaligned();
  }
  if (count == 0) return {};
  const Kernel kernel = kernel_of(*decode_kernel(batch.heads / batch.kv_heads, batch.head_dim));
  KVLANE_TRY(gpu::use_device(stream.device()));
  kernel<<<static_cast<unsigned>(count), kThreads, 0, handle_of(stream)>>>(batch, units);
  return gpu::launched("decode attention");
}

Status merge_on_gpu(const DecodeMerge& merge, const gpu::Stream& stream) {
  if (merge.head_dim % 4 != 0) return invalid_argument("head_dim is not a multiple of 4");
  if (!aligned(merge.out) || !aligned(merge.result_f32) || !aligned(merge.result_bf16) ||
      !aligned(merge.total_out)) {
    return misaligned();
  }
  const int rows = merge.sequences * merge.heads;
  if (rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const bool few = rows <= kFewRows;
  const int blocks = few ? rows : (rows + kDecodeWarps - 1) / kDecodeWarps;
  return gpu::launch_early(few ? merge_few_rows : merge_rows, {std::size_t(blocks), kThreads},
                           stream, "merge of decode attention", merge);
}

}  // namespace kvlane
