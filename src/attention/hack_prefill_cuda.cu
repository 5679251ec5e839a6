// Kernels of prefill attention on codes, one a width of heads and a partition of pages.
//
// Block i has unit i: four warps with 32 pairs each (16 where head_dim is over 128) over a sealed
// page at a time. What a page of 2-bit codes by both axes costs a block, from the machine code for
// sm_90 (instructions are those of a warp behind the unpacking, where no maximum moves):
//   head_dim                             64       128      256
//   pairs                                128      128      64
//   KB from the second-level cache       2.5      4.75     9.25
//   KB unpacked to shared memory         8        16       32
//   KB from shared memory                40       80       144
//   products of 16 x 8 x 32              256      512      512
//   powers of two                        8192     8192     4096
//   instructions                         1180     1630     1320
// The matrix unit, at a product a cycle at best, has less to do than issuing: 64 scores and half of
// head_dim outputs a lane take 8 and 3 instructions each besides the products. So it is these that
// bound it, where attention over rows is bound by shared memory (attention/prefill_cuda.cu): at
// head_dim 128 about 1,800 cycles of a multiprocessor's four schedulers with the unpacking, a page
// and 128 pairs; at head_dim 64 rows are cheaper. Less would take the rank-one products (means
// times weights) on the matrix unit, and wgmma, which leaves issue slots free.
//
// Two blocks a multiprocessor, as registers allow: 41, 50 and 73 KB of shared memory each, with
// 2-bit pages; at head_dim 256 on sm_89, which has less, one. No spills, which the build insists
// on.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/hack_prefill_device.h"
#include "attention/hack_prefill_hopper.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane {

namespace {

constexpr int kThreads = kPrefillWarps * gpu::kWarpThreads;

template <int kDim, int kTiles, int kBlocks, int kPartition>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attend_coded_tiles(const HackPrefillBatch batch, const PrefillUnit* units) {
  using Shared = HackPrefillShared<kDim, kTiles>;
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  gpu::CudaThread thread;
  attend_coded_tile<kDim, kTiles, kPartition>(
      thread, batch, units[blockIdx.x], *reinterpret_cast<Shared*>(memory),
      reinterpret_cast<gpu::Words4*>(memory + sizeof(Shared)));
}

struct Launch {
  void (*kernel)(const HackPrefillBatch, const PrefillUnit*);
  std::size_t shared_bytes;
};

Launch launch_of(const HackKind& kind, const HackPrefillBatch& batch) {
  Launch launch{};
  with_hack_prefill_kernel(kind.partition, batch.head_dim, [&](auto known) {
    using Known = decltype(known);
    launch = {attend_coded_tiles<Known::kDim, Known::kTiles, Known::kBlocks, Known::kPartition>,
              sizeof(HackPrefillShared<Known::kDim, Known::kTiles>) +
                  hack_prefill_pages_bytes(batch.layout, Known::kDim)};
  });
  return launch;
}

bool aligned(const void* address, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0;
}

}  // namespace

Status attend_hack_prefill_on_gpu(const HackKind& kind, const HackPrefillBatch& batch,
                                  const PrefillUnit* units, std::size_t count,
                                  const gpu::Stream& stream) {
  KVLANE_TRY(hack_prefill_shape(kind, batch.heads, batch.kv_heads, batch.head_dim).status());
  if (!aligned(batch.slabs, 64) || !aligned(batch.queries.codes, 16) ||
      !aligned(batch.queries.rests, 16) || !aligned(batch.out, 16) || batch.block_bytes % 64 != 0 ||
      batch.layout.bytes % 64 != 0) {
    return invalid_argument(
        "attention on codes on a GPU needs slabs at multiples of 64 bytes and all else of 16");
  }
  if (count == 0) return {};
  KVLANE_ASSIGN(const bool on_hopper,
                takes_hack_hopper_kernel(kind, batch.head_dim, stream.device()));
  if (on_hopper) return attend_hack_prefill_on_hopper(kind, batch, units, count, stream);
  const auto [kernel, bytes] = launch_of(kind, batch);
  KVLANE_TRY(gpu::use_device(stream.device()));
  KVLANE_TRY(gpu::cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)),
      "take " + std::to_string(bytes) + " bytes of shared memory for prefill attention on codes"));
  kernel<<<static_cast<unsigned>(count), kThreads, bytes,
           static_cast<cudaStream_t>(stream.handle())>>>(batch, units);
  return gpu::launched("prefill attention on codes");
}

}  // namespace kvlane
