// Kernels of decode attention on codes: some that prepare queries, and one a kind of
// pages and width of heads, whose block i has unit i: four warps, a page each.
//
// A page of 2-bit codes at head_dim 128 is 4,864 bytes by both axes (K and V 2,048 each, means and
// scales 384 each), 5,120 with partitions of 64; it is read once for 8 query heads, in pieces of 16
// bytes. By both a warp has the next page on its way to shared memory, with 16 warps a
// multiprocessor 74 KB, where an H200 needs 40 at 0.8 us of latency. What a page costs a warp, from
// the machine code for sm_90, where no maximum moves: 650 instructions, 490 with up to four query
// heads a KV head, of which 160 bring codes to their bytes, 34 are products in 8 bits and 8 in 16.
// A unit takes 640, or 540, besides, and 210 for each query head. No spills, which the build
// insists on.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_decode_device.h"
#include "attention/hack_decode_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "gpu/early_launch.h"

namespace kvlane {

namespace {

constexpr int kThreads = kDecodeWarps * gpu::kWarpThreads;

// Blocks of a multiprocessor that registers are shared out for. What fits four times on sm_90 lacks
// a register before that, and where head_dim is narrower than the kernel.
constexpr int blocks_of(const HackKind& kind, int dim, bool whole) {
#ifdef __CUDA_ARCH__
  whole = whole && __CUDA_ARCH__ >= 900;
#endif
  if (dim == 128 && kind == HackKind{2, 2, 0} && !whole) return hack_decode_blocks(kind, dim) - 1;
  return hack_decode_blocks(kind, dim);
}

template <int kDim, int kKeyBits, int kValueBits, int kPartition, bool kWhole, int kHeads>
__global__ void __launch_bounds__(kThreads,
                                  blocks_of({kKeyBits, kValueBits, kPartition}, kDim, kWhole))
    attend_coded_units(const HackDecodeBatch batch, const DecodeUnit* units) {
  using Memory = HackDecodeMemory<kDim, kKeyBits, kValueBits, kPartition>;
  extern __shared__ __align__(alignof(Memory)) std::byte memory[];
  gpu::CudaThread thread;
  thread.let_next_begin();
  attend_coded_unit<kDim, kKeyBits, kValueBits, kPartition, kWhole, kHeads>(
      thread, batch, units[blockIdx.x], *reinterpret_cast<Memory*>(memory));
}

template <int kLanes>
__global__ void __launch_bounds__(kThreads) prepare_rows(const HackPrepare prepare) {
  gpu::CudaThread thread;
  thread.let_next_begin();
  const int warp = static_cast<int>(blockIdx.x) * kDecodeWarps + thread.warp();
  prepare_queries<kLanes>(thread, prepare, warp * (gpu::kWarpThreads / kLanes));
}

struct Launch {
  void (*kernel)(const HackDecodeBatch, const DecodeUnit*);
  std::size_t shared_bytes;
};

Launch launch_of(const HackKind& kind, const HackDecodeBatch& batch) {
  Launch launch{};
  with_hack_decode_kernel(kind, batch.head_dim, batch.heads / batch.kv_heads, [&](auto known) {
    using Known = decltype(known);
    launch = {
        attend_coded_units<Known::kDim, Known::kKeyBits, Known::kValueBits, Known::kPartition,
                           Known::kWhole, Known::kHeads>,
        sizeof(
            HackDecodeMemory<Known::kDim, Known::kKeyBits, Known::kValueBits, Known::kPartition>)};
  });
  return launch;
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
  const int lanes = hack_prepare_lanes(prepare.head_dim);
  auto* const kernel = lanes == 8    ? prepare_rows<8>
                       : lanes == 16 ? prepare_rows<16>
                                     : prepare_rows<32>;
  const int rows = kDecodeWarps * hack_prepare_rows(prepare.head_dim);  // of a block
  kernel<<<static_cast<unsigned>((prepare.rows + rows - 1) / rows), kThreads, 0,
           handle_of(stream)>>>(prepare);
  return gpu::launched("preparation of queries");
}

Status attend_hack_on_gpu(const HackKind& kind, const HackDecodeBatch& batch,
                          const DecodeUnit* units, std::size_t count, const gpu::Stream& stream) {
  KVLANE_TRY(hack_decode_shape(kind, batch.heads, batch.kv_heads, batch.head_dim, 1).status());
  if (!aligned(batch.slabs, 64) || !aligned(batch.queries) || !aligned(batch.out, 16) ||
      !aligned(units, 16) || batch.block_bytes % 64 != 0 || batch.layout.bytes % 64 != 0) {
    return misaligned();
  }
  if (count == 0) return {};
  const auto [kernel, bytes] = launch_of(kind, batch);
  KVLANE_TRY(gpu::use_device(stream.device()));
  return gpu::launch_early(kernel, {count, kThreads, bytes}, stream, "decode attention on codes",
                           batch, units);
}

}  // namespace kvlane
