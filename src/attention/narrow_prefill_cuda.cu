// Kernels of prefill attention over narrow pages, one a largest width.
//
// Block i has unit i: four warps with 32 pairs each (16 where widths are over 128) over a page at a
// time, of which K and V follow each other as in attention/prefill_cuda.cu. What a page costs a
// block of 128 pairs, and one of rows at head_dim 128:
//                                        k, v             64, 64    rows of 128
//   KB from the second-level cache       (k + v) / 8      16        32
//   KB to and from shared memory         (k + v) / 8;     16, 80    32, 160
//                                        (4 v + 6 k) / 8
//   products of 16 x 8 x 16              4 (k + v) + 32   544       1056
//   powers of two                        8192             8192      8192
// (Products of V count it rounded up to 32.) So with half of all channels either bound is half of
// that of attention over rows, 770 cycles of shared memory and 540 at best of the matrix unit where
// these are 1540 and 1060; the 510 cycles of powers of two at 16 a cycle, and the instructions
// around them, stay. Not measured. V is not transposed on its way, and lanes of an access to shared
// memory are in different banks.
//
// Two blocks a multiprocessor, as registers allow, with the shared memory of attention over rows.
// No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/narrow_prefill_device.h"
#include "attention/narrow_prefill_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane {

namespace {

constexpr int kThreads = kPrefillWarps * gpu::kWarpThreads;

template <int kDim, int kTiles, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attend_narrow_tiles(const NarrowPrefillBatch batch, const PrefillUnit* units) {
  using Shared = PrefillShared<kDim, kTiles>;
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  gpu::CudaThread thread;
  attend_narrow_tile<kDim, kTiles>(thread, batch, units[blockIdx.x],
                                   *reinterpret_cast<Shared*>(memory));
}

struct Launch {
  void (*kernel)(const NarrowPrefillBatch, const PrefillUnit*);
  int shared_bytes;
};

template <int kDim, int kTiles, int kBlocks>
Launch launch() {
  return {attend_narrow_tiles<kDim, kTiles, kBlocks>, int{sizeof(PrefillShared<kDim, kTiles>)}};
}

// A unit has as many pairs as attention over rows takes for head_dim, and a kernel of narrower
// heads takes no fewer.
Launch launch_of(int width_max) {
  switch (prefill_kernel(width_max)->dim) {
    case 64: return launch<64, 2, 2>();
    case 128: return launch<128, 2, 2>();
    default: return launch<256, 1, 2>();
  }
}

}  // namespace

Status attend_narrow_prefill_on_gpu(const NarrowPrefillBatch& batch, int width_max,
                                    const PrefillUnit* units, std::size_t count,
                                    const gpu::Stream& stream) {
  KVLANE_TRY(check_narrow_prefill(batch, width_max));
  if (count == 0) return {};
  const auto [kernel, bytes] = launch_of(width_max);
  KVLANE_TRY(gpu::use_device(stream.device()));
  KVLANE_TRY(gpu::cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "take " + std::to_string(bytes) + " bytes of shared memory for prefill attention"));
  kernel<<<static_cast<unsigned>(count), kThreads, static_cast<std::size_t>(bytes),
           static_cast<cudaStream_t>(stream.handle())>>>(batch, units);
  return gpu::launched("prefill attention over narrow pages");
}

}  // namespace kvlane
