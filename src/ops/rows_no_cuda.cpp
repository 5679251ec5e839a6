// The launchers of row operations for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/no_cuda.h"
#include "ops/rows_gpu.h"

namespace kvlane {

Status embed_on_gpu(const EmbedRows&, const gpu::Stream&) { return gpu::no_cuda(); }
Status norm_on_gpu(const NormRows&, const gpu::Stream&) { return gpu::no_cuda(); }
Status write_qkv_on_gpu(const QkvRows&, const gpu::Stream&) { return gpu::no_cuda(); }
Status silu_on_gpu(const SiluRows&, const gpu::Stream&) { return gpu::no_cuda(); }

}  // namespace kvlane
