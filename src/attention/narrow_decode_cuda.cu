// Kernels of decode attention over narrow pages, one a largest width and number of column tiles:
// block i does the pieces of machine i, and all of them are on the device at once.
//
// A page has 128 (k + v) bytes, half of one in 16 bits where half of all channels are kept; it is
// read once for 8 (or 16) query heads, in copies of 16 bytes of which 8 lanes make 128 consecutive
// ones (64 at the end of a V of an odd multiple of 16 channels). On their way are four groups of
// 2 KB a warp whatever the widths are, 32 KB a block of threads:
//   widths up to       64      64, 16 heads    128     128, 16 heads    256
//   blocks             5       4               4       3                3
//   KB on their way    160     128             128     96               96
//   KB of shared       33.3    34.3            34.3    36.3             36.3    a block
// An H200 needs 40 KB at 0.8 us of latency; where shared memory is 100 KB (sm_89) two blocks fit.
// Eight lanes whose 16 bytes are not a line's 128 in order ask the second-level cache for each
// sector twice: then that is the limit, at half the speed (measured).
// At the end of a run (1,024 tokens) a block waits for its own copies while the others go on. Of a
// page at k = v = 64 a warp has 64 products of 16 x 8 x 16, 32 copies and as many loads from shared
// memory of 16 bytes a lane. No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_decode_device.h"
#include "attention/narrow_decode_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane {

namespace {

constexpr int kThreads = kDecodeWarps * gpu::kWarpThreads;

constexpr int blocks_of(int dim, int tiles) {
  for (const NarrowDecodeKernel& kernel : kNarrowDecodeKernels) {
    if (kernel.dim == dim && kernel.tiles == tiles) return kernel.blocks;
  }
  return 0;
}

template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, blocks_of(kDim, kTiles))
    attend_narrow_runs(const NarrowDecodeBatch batch) {
  __shared__ NarrowDecodeShared<kDim, kTiles> shared;
  gpu::CudaThread thread;
  attend_narrow_pieces<kDim, kTiles>(thread, batch, static_cast<int>(blockIdx.x), shared);
}

using Kernel = void (*)(const NarrowDecodeBatch);

Kernel kernel_of(const NarrowDecodeKernel& kernel) {
  switch (kernel.dim * 8 + kernel.tiles) {
    case 64 * 8 + 1: return attend_narrow_runs<64, 1>;
    case 64 * 8 + 2: return attend_narrow_runs<64, 2>;
    case 128 * 8 + 1: return attend_narrow_runs<128, 1>;
    case 128 * 8 + 2: return attend_narrow_runs<128, 2>;
    default: return attend_narrow_runs<256, 1>;
  }
}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

Status attend_narrow_on_gpu(const NarrowDecodeBatch& batch, int width_max, int machines,
                            const gpu::Stream& stream) {
  const HeadWidths widest[] = {{width_max, width_max}};
  KVLANE_TRY(narrow_decode_shape(1, widest, batch.head_dim, 1).status());
  if (batch.kv_heads < 1 || batch.heads < 1 || batch.heads % batch.kv_heads != 0) {
    return invalid_argument("query heads are not a multiple of KV heads");
  }
  if (!aligned(batch.slabs) || !aligned(batch.q) || !aligned(batch.out) || !aligned(batch.pieces) ||
      batch.block_bytes % 16 != 0) {
    return invalid_argument(
        "attention over narrow pages on a GPU needs addresses that are multiples of 16");
  }
  if (machines == 0) return {};
  const Kernel kernel = kernel_of(*narrow_decode_kernel(batch.heads / batch.kv_heads, width_max));
  KVLANE_TRY(gpu::use_device(stream.device()));
  kernel<<<static_cast<unsigned>(machines), kThreads, 0,
           static_cast<cudaStream_t>(stream.handle())>>>(batch);
  return gpu::launched("decode attention over narrow pages");
}

}  // namespace kvlane
