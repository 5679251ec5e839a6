// Kernels of prefill attention on codes for sm_90a, one a width of heads and a number of bits.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/hack_prefill_hopper.h"
#include "gpu/cuda_status.h"
#include "gpu/hopper_thread.h"
#include "gpu/warpgroup_gpu.h"

namespace kvlane {

namespace {

template <int kDim, int kBits>
__global__ void __launch_bounds__(kHackHopperThreads, 1)
    attend_coded_tiles_on_hopper(const HackPrefillBatch batch, const PrefillUnit* units) {
  using Shared = HackHopperShared<kDim, kBits>;
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  gpu::HopperThread thread;
  attend_coded_tile_on_hopper<kDim, kBits>(thread, batch, units[blockIdx.x],
                                           *reinterpret_cast<Shared*>(memory));
}

}  // namespace

Result<bool> takes_hack_hopper_kernel(const HackKind& kind, int head_dim, int device) {
  if (!with_hack_hopper_kernel(kind, head_dim, [](auto) {})) return false;
  return gpu::has_warpgroups(device);
}

Status attend_hack_prefill_on_hopper(const HackKind& kind, const HackPrefillBatch& batch,
                                     const PrefillUnit* units, std::size_t count,
                                     const gpu::Stream& stream) {
  void (*kernel)(const HackPrefillBatch, const PrefillUnit*) = nullptr;
  int bytes = 0;
  with_hack_hopper_kernel(kind, batch.head_dim, [&](auto known) {
    using Known = decltype(known);
    kernel = attend_coded_tiles_on_hopper<Known::kDim, Known::kBits>;
    bytes = sizeof(HackHopperShared<Known::kDim, Known::kBits>);
  });
  if (kernel == nullptr) return internal_error("no kernel for sm_90a has this kind and width");
  KVLANE_TRY(gpu::use_device(stream.device()));
  KVLANE_TRY(gpu::cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "take " + std::to_string(bytes) + " bytes of shared memory for prefill attention on codes"));
  kernel<<<static_cast<unsigned>(count), kHackHopperThreads, static_cast<std::size_t>(bytes),
           static_cast<cudaStream_t>(stream.handle())>>>(batch, units);
  return gpu::launched("prefill attention on codes");
}

}  // namespace kvlane
