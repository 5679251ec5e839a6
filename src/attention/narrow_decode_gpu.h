// Decode attention over sealed pages of few channels on a GPU: a persistent grid, one launch, whose
// states attention/decode_gpu.h merges together with those of rows. Device code is in
// attention/narrow_decode_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "attention/decode_batch.h"
#include "attention/narrow_decode_batch.h"
#include "gpu/device.h"

namespace kvlane {

inline constexpr int kNarrowWidthStep = 16;
inline constexpr int kNarrowWidthMax = 256;

// What kernels there are: widths up to `dim`, `tiles` times 8 query heads at a time.
struct NarrowDecodeKernel {
  int dim, tiles;
  int blocks;  // of threads on a multiprocessor, as many as registers allow
};
inline constexpr NarrowDecodeKernel kNarrowDecodeKernels[] = {
    {64, 1, 5}, {64, 2, 4}, {128, 1, 4}, {128, 2, 3}, {256, 1, 3}};

// The kernel for this many query heads a KV head and widths up to this one, or null for a width
// that is not a multiple of 16 up to 256. Larger groups than it has columns for go over a run of
// pages several times.
constexpr const NarrowDecodeKernel* narrow_decode_kernel(int group, int width_max) {
  if (width_max < kNarrowWidthStep || width_max > kNarrowWidthMax ||
      width_max % kNarrowWidthStep != 0 || group < 1) {
    return nullptr;
  }
  const NarrowDecodeKernel* best = nullptr;
  for (const NarrowDecodeKernel& kernel : kNarrowDecodeKernels) {
    if (kernel.dim < width_max || (best != nullptr && best->dim < kernel.dim)) continue;
    if (best == nullptr || group > best->tiles * kDecodeColumns) best = &kernel;
  }
  return best;
}

// The largest of a layer's widths, of K and V; 0 without heads.
int narrow_width_max(std::span<const HeadWidths> widths);

// For the planner: as many machines as blocks of threads the device takes at a time. One width a KV
// head. kInvalidArgument for shapes that have no kernel.
Result<NarrowDecodeShape> narrow_decode_shape(int heads, std::span<const HeadWidths> widths,
                                              int head_dim, int multiprocessors);

// The plan of batch.pieces is for `machines`, and for heads as wide as `width_max` at most.
// Everything that `batch` points to lies in memory that the stream's device can reach, until the
// stream has done the launch. Returns when the launch is in the stream; without machines nothing is
// launched. kInvalidArgument for shapes that have no kernel and addresses that are not multiples of
// 16.
Status attend_narrow_on_gpu(const NarrowDecodeBatch& batch, int width_max, int machines,
                            const gpu::Stream& stream);

}  // namespace kvlane
