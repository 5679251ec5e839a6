// Kernels of prefill attention on codes for sm_90a, one a width of heads and a number of bits.
//
// Block i has unit i: two warpgroups that score 64 pairs each over a sealed page at a time, and one
// that brings pages. What a page costs a block, from the machine code (instructions are those of a
// warp where no maximum moves; cycles are those of a multiprocessor at the rates that NVIDIA
// names):
//   head_dim, bits                      64, 2     128, 2    64, 4     128, 4
//   KB from the second-level cache      2.5       4.75      4.5       8.75
//   KB unpacked to shared memory        12        24        12        24
//   KB of it that products read         34        66        34        66
//   cycles of products in 8 bits        128       256       128       256
//   cycles of products in 16 bits       288       544       288       544
//   cycles of powers of two             512       512       512       512
//   instructions of a warp that scores  270       275       270       275
//   and of one that brings pages        175       265       205       330
// A scheduler has two of the former warps and one of the latter: at head_dim 128 and 2 bits 815
// instructions a page, beside 800 cycles of the matrix unit. So at best a page and 128 pairs take
// some 850 cycles, bounded by both about alike, where those of attention/hack_prefill_cuda.cu take
// 1,800 and all phases one after another took 2,950.
//
// One block a multiprocessor: 185 KB of shared memory with pages of 2 bits at head_dim 128. Threads
// begin with 168 registers; those that score take 216, of which they use 213 at most, and those
// that bring pages keep 72. No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/hack_prefill_hopper.h"
#include "attention/hack_prefill_hopper_device.h"
#include "gpu/cuda_status.h"
#include "gpu/hopper_thread.h"
#include "gpu/warpgroup_gpu.h"

namespace kvlane {

namespace {

#ifdef KVLANE_EVERY_THREAD_ARRIVES
using Thread = gpu::HopperThreadApart;
#else
using Thread = gpu::HopperThread;
#endif

template <int kDim, int kBits>
__global__ void __launch_bounds__(kHackHopperThreads, 1)
    attend_coded_tiles_on_hopper(const HackPrefillBatch batch, const PrefillUnit* units) {
  using Shared = HackHopperShared<kDim, kBits>;
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  Thread thread;
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
