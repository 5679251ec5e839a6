// Kernels of decode attention on codes: one that prepares queries, a warp a row, and one a kind of
// pages and width of heads, whose block i has unit i: four warps, a page each.
//
// A page of 2-bit codes at head_dim 128 is 4,864 bytes by both axes (K and V 2,048 each, means and
// scales 384 each), 5,120 with partitions of 64; it is read once for 8 query heads, all codes in
// accesses of 16 bytes. On their way, a warp: K of the next page or V of this one, 2 to 8 KB, or
// all lines of the next page, 4.8 KB; with 8 to 16 warps a multiprocessor 24 to 78 KB, where an
// H200 needs 40 at 0.8 us of latency. Products of the matrix unit a page and 8 heads at head_dim
// 128: 34 in 8 bits, and by both 16 in 16 bits, of some 950 instructions. These are the limit, and
// how long each waits for the one before it (measured: half of the issue slots with 12 warps; 16
// warps that hold no codes ahead are a seventh faster). No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_decode_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane {

namespace {

constexpr int kThreads = kDecodeWarps * gpu::kWarpThreads;

// Blocks of a multiprocessor that registers are shared out for. What fits four times on sm_90 lacks
// a register before that.
constexpr int blocks_of(const HackKind& kind, int dim) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (hack_decode_fetches_ahead(kind, dim)) return hack_decode_blocks(kind, dim) - 1;
#endif
  return hack_decode_blocks(kind, dim);
}

template <int kDim, int kKeyBits, int kValueBits, int kPartition>
__global__ void __launch_bounds__(kThreads, blocks_of({kKeyBits, kValueBits, kPartition}, kDim))
    attend_coded_units(const HackDecodeBatch batch, const DecodeUnit* units) {
  __shared__ HackDecodeShared<kDim> shared;
  gpu::CudaThread thread;
  attend_coded_unit<kDim, kKeyBits, kValueBits, kPartition>(thread, batch, units[blockIdx.x],
                                                            shared);
}

__global__ void __launch_bounds__(kThreads) prepare_queries(const HackPrepare prepare) {
  gpu::CudaThread thread;
  const int row = static_cast<int>(blockIdx.x) * kDecodeWarps + thread.warp();
  if (row < prepare.rows) prepare_query(thread, prepare, row);
}

using Kernel = void (*)(const HackDecodeBatch, const DecodeUnit*);

Kernel kernel_of(const HackKind& kind, int head_dim) {
  Kernel kernel = nullptr;
  with_hack_decode_kernel(kind, head_dim, [&](auto known) {
    using Known = decltype(known);
    kernel = attend_coded_units<Known::kDim, Known::kKeyBits, Known::kValueBits, Known::kPartition>;
  });
  return kernel;
}

bool aligned(const void* address, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0;
}
bool aligned(const HackPrepared& queries) {
  return aligned(queries.codes, 16) && aligned(queries.rests, 16) && aligned(queries.terms, 16);
}

Status misaligned() {
  return invalid_argument(
      "attention on codes on a GPU needs slabs at multiples of 64 bytes and all else of 16");
}

cudaStream_t handle_of(const gpu::Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

}  // namespace

Status prepare_hack_on_gpu(const HackPrepare& prepare, const gpu::Stream& stream) {
  if (prepare.head_dim < hack::kHeadDimStep || prepare.head_dim > kHackPreparedDimMax ||
      prepare.head_dim % hack::kHeadDimStep != 0) {
    return invalid_argument("attention on codes needs a head_dim that is a multiple of 16 to 256");
  }
  if (!aligned(prepare.q, 16) || !aligned(prepare.to)) return misaligned();
  if (prepare.rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  prepare_queries<<<static_cast<unsigned>((prepare.rows + kDecodeWarps - 1) / kDecodeWarps),
                    kThreads, 0, handle_of(stream)>>>(prepare);
  return gpu::launched("preparation of queries");
}

Status attend_hack_on_gpu(const HackKind& kind, const HackDecodeBatch& batch,
                          const DecodeUnit* units, std::size_t count, const gpu::Stream& stream) {
  KVLANE_TRY(hack_decode_shape(kind, batch.heads, batch.kv_heads, batch.head_dim, 1).status());
  if (!aligned(batch.slabs, 64) || !aligned(batch.queries) || !aligned(batch.out, 16) ||
      batch.block_bytes % 64 != 0 || batch.layout.bytes % 64 != 0) {
    return misaligned();
  }
  if (count == 0) return {};
  const Kernel kernel = kernel_of(kind, batch.head_dim);
  KVLANE_TRY(gpu::use_device(stream.device()));
  kernel<<<static_cast<unsigned>(count), kThreads, 0, handle_of(stream)>>>(batch, units);
  return gpu::launched("decode attention on codes");
}

}  // namespace kvlane
