// Kernels of prefill attention, one a width of heads.
//
// Block i has unit i: four warps with 32 pairs each (16 where head_dim is over 128) over a page at
// a time. What a page costs a block, from the machine code for sm_90 (the others are much the same;
// instructions are those of a warp, where nothing is masked and no maximum moves):
//   head_dim                             64       128      256
//   pairs                                128      128      64
//   KB from the second-level cache       16       32       64
//   KB to and from shared memory         16, 64   32, 160  64, 288
//   products of 16 x 8 x 16              544      1056     1040
//     of them sums of weights            32       32       16
//   powers of two                        8192     8192     4096
//   instructions                         530      770      740
// A multiprocessor of an H200 does at best a product a cycle (mma.sync less: kvlane_gpu_bench
// measures how much), 128 bytes of shared memory, 16 powers of two and 4 instructions, one for each
// warp of a block. So at head_dim 128 shared memory needs 1540 cycles, products 1060 at best, and
// the others half of it: with 16 pairs a warp the loads of K and V would be twice as many. At 256,
// where 32 pairs do not fit into registers, shared memory bounds it, by 2820 cycles to 1040.
//
// Two blocks a multiprocessor, as registers allow, so that one computes while the other waits at a
// barrier: 64, 128 and 192 KB of shared memory. Where there is less (100 KB on sm_89, 164 on sm_80)
// one of the wider ones runs alone. No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/prefill_device.h"
#include "attention/prefill_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane {

namespace {

constexpr int kThreads = kPrefillWarps * gpu::kWarpThreads;

template <int kDim, int kTiles>
constexpr bool in_list(int blocks) {
  for (const PrefillKernelShape& kernel : kPrefillKernels) {
    if (kernel.dim == kDim && kernel.tiles == kTiles) return kernel.blocks == blocks;
  }
  return false;
}

template <int kDim, int kTiles, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attend_tiles(const PrefillBatch batch, const PrefillUnit* units) {
  static_assert(in_list<kDim, kTiles>(kBlocks));
  using Shared = PrefillShared<kDim, kTiles>;
  // More than a kernel may have without asking (48 KB), so the launch names its size.
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  gpu::CudaThread thread;
  attend_tile<kDim, kTiles>(thread, batch, units[blockIdx.x], *reinterpret_cast<Shared*>(memory));
}

// The same behind sealed pages: a window is few of them, so what takes time is to bring states and
// rows, and more and smaller blocks, kParts of them a unit, have more on their way.
template <int kDim, int kTiles, int kBlocks, int kParts>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attend_window_tiles(const PrefillBatch batch, const SealedSeen seen, const PrefillUnit* units) {
  using Shared = PrefillShared<kDim, kTiles>;
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  gpu::CudaThread thread;
  const PrefillUnit unit = part_of_unit(units[blockIdx.x / kParts],
                                        static_cast<int>(blockIdx.x) % kParts, Shared::kPairs);
  if (unit.pairs == 0) return;
  attend_tile<kDim, kTiles>(thread, batch, unit, *reinterpret_cast<Shared*>(memory), seen);
}

struct Launch {
  void (*kernel)(const PrefillBatch, const PrefillUnit*);
  void (*window)(const PrefillBatch, const SealedSeen, const PrefillUnit*);
  int shared_bytes, window_bytes;
  int parts;  // blocks of a unit, for a window
};

template <int kDim, int kTiles, int kBlocks, int kWindowTiles, int kWindowBlocks>
Launch launch() {
  constexpr int kParts = kTiles / kWindowTiles;
  return {attend_tiles<kDim, kTiles, kBlocks>,
          attend_window_tiles<kDim, kWindowTiles, kWindowBlocks, kParts>,
          int{sizeof(PrefillShared<kDim, kTiles>)}, int{sizeof(PrefillShared<kDim, kWindowTiles>)},
          kParts};
}

Launch launch_of(const PrefillKernelShape& shape) {
  switch (shape.dim) {
    case 64: return launch<64, 2, 2, 2, 2>();
    case 128: return launch<128, 2, 2, 1, 3>();
    default: return launch<256, 1, 2, 1, 2>();
  }
}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

Status check(const PrefillBatch& batch) {
  KVLANE_TRY(prefill_shape(batch.heads, batch.kv_heads, batch.head_dim).status());
  if (!aligned(batch.slabs) || !aligned(batch.q) || !aligned(batch.out) ||
      batch.block_bytes % 16 != 0) {
    return invalid_argument("prefill attention on a GPU needs addresses that are multiples of 16");
  }
  return {};
}

// Readies a kernel that takes so much shared memory.
template <class Kernel>
Status ready(Kernel* kernel, int shared_bytes, const gpu::Stream& stream) {
  KVLANE_TRY(gpu::use_device(stream.device()));
  return gpu::cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "take " + std::to_string(shared_bytes) + " bytes of shared memory for prefill attention");
}

cudaStream_t handle_of(const gpu::Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

}  // namespace

Status attend_prefill_on_gpu(const PrefillBatch& batch, const PrefillUnit* units, std::size_t count,
                             const gpu::Stream& stream) {
  KVLANE_TRY(check(batch));
  if (count == 0) return {};
  const Launch launch = launch_of(*prefill_kernel(batch.head_dim));
  KVLANE_TRY(ready(launch.kernel, launch.shared_bytes, stream));
  launch.kernel<<<static_cast<unsigned>(count), kThreads,
                  static_cast<std::size_t>(launch.shared_bytes), handle_of(stream)>>>(batch, units);
  return gpu::launched("prefill attention");
}

Status attend_window_on_gpu(const PrefillBatch& batch, const SealedSeen& seen,
                            const PrefillUnit* units, std::size_t count,
                            const gpu::Stream& stream) {
  KVLANE_TRY(check(batch));
  if (!aligned(seen.out)) {
    return invalid_argument("prefill attention on a GPU needs addresses that are multiples of 16");
  }
  if (count == 0) return {};
  const Launch launch = launch_of(*prefill_kernel(batch.head_dim));
  KVLANE_TRY(ready(launch.window, launch.window_bytes, stream));
  launch.window<<<static_cast<unsigned>(count * launch.parts), kThreads,
                  static_cast<std::size_t>(launch.window_bytes), handle_of(stream)>>>(batch, seen,
                                                                                      units);
  return gpu::launched("prefill attention of a window");
}

}  // namespace kvlane
