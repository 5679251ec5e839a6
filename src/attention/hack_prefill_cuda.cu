// Kernels of prefill attention on codes, one a width of heads and a partition of pages.
//
// Block i has unit i: four warps with 32 pairs each (16 where head_dim is over 128) over a sealed
// page at a time.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/hack_prefill_gpu.h"
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
