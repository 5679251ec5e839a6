// Prefill attention over 16-bit pages on a GPU: spans of rows of many sequences in one launch.
// Device code is in attention/prefill_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/prefill_batch.h"
#include "gpu/device.h"
#include "plan/prefill_units.h"

namespace kvlane {

inline constexpr int kPrefillHeadDimMax = 256;

// What kernels there are: head_dim up to `dim`, `tiles` times 16 pairs a warp.
struct PrefillKernelShape {
  int dim, tiles;
  int blocks;  // of threads on a multiprocessor, as many as registers allow

  constexpr int pairs() const { return kPrefillWarps * tiles * kPrefillRows; }
};
inline constexpr PrefillKernelShape kPrefillKernels[] = {{64, 2, 2}, {128, 2, 2}, {256, 1, 2}};

// The kernel for this head_dim, or null when it is not a multiple of 8 from 8 to 256.
constexpr const PrefillKernelShape* prefill_kernel(int head_dim) {
  if (head_dim < 8 || head_dim % 8 != 0) return nullptr;
  for (const PrefillKernelShape& kernel : kPrefillKernels) {
    if (head_dim <= kernel.dim) return &kernel;
  }
  return nullptr;
}

// For plan_prefill(). kInvalidArgument for shapes that have no kernel.
Result<PrefillShape> prefill_shape(int heads, int kv_heads, int head_dim);

// `units` is [count], from plan_prefill() with the shape above. It and everything that `batch`
// points to lie in memory that the stream's device can reach, until the stream has done the launch.
// Rows of `out` that no span has stay as they are. Returns when the launch is in the stream; a
// count of 0 launches nothing. kInvalidArgument for shapes that have no kernel and addresses that
// are not multiples of 16.
Status attend_prefill_on_gpu(const PrefillBatch& batch, const PrefillUnit* units, std::size_t count,
                             const gpu::Stream& stream);

// The same behind sealed pages, whose states `seen` has: tables and slabs are of rows.
Status attend_window_on_gpu(const PrefillBatch& batch, const SealedSeen& seen,
                            const PrefillUnit* units, std::size_t count, const gpu::Stream& stream);

}  // namespace kvlane
