// Decode attention over 16-bit pages on a GPU: one query token a sequence, many sequences in one
// launch, then one that merges. Device code is in attention/decode_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/decode_batch.h"
#include "gpu/device.h"
#include "plan/decode_units.h"

namespace kvlane {

inline constexpr int kDecodeHeadDimMax = 256;

// What kernels there are: head_dim up to `dim`, `tiles` times 8 query heads a unit.
struct DecodeKernelShape {
  int dim, tiles;
  int blocks;  // of threads on a multiprocessor, as many as registers allow
};
inline constexpr DecodeKernelShape kDecodeKernels[] = {
    {64, 1, 4}, {64, 2, 3}, {128, 1, 3}, {128, 2, 2}, {256, 1, 2}};

// The kernel for this many query heads a KV head, or null for a head_dim that is not a multiple of
// 8 from 8 to 256. Larger groups than it has columns for are cut, and the second part reads its
// pages from the second-level cache.
constexpr const DecodeKernelShape* decode_kernel(int group, int head_dim) {
  if (head_dim < 8 || head_dim > kDecodeHeadDimMax || head_dim % 8 != 0 || group < 1)
    return nullptr;
  const DecodeKernelShape* best = nullptr;
  for (const DecodeKernelShape& kernel : kDecodeKernels) {
    if (kernel.dim < head_dim || (best != nullptr && best->dim < kernel.dim)) continue;
    if (best == nullptr || group > best->tiles * kDecodeColumns) best = &kernel;
  }
  return best;
}

// For plan_decode(). kInvalidArgument for shapes that have no kernel.
Result<DecodeShape> decode_shape(int heads, int kv_heads, int head_dim, int multiprocessors);

// `units` is [count], from plan_decode() with the shape above. It and everything that `batch`
// points to lie in memory that the stream's device can reach, until the stream has done the launch.
// Returns when the launch is in the stream; a count of 0 launches nothing. kInvalidArgument for
// shapes that have no kernel and addresses that are not multiples of 16.
Status attend_on_gpu(const DecodeBatch& batch, const DecodeUnit* units, std::size_t count,
                     const gpu::Stream& stream);

// The same for the rows of all sequences.
Status merge_on_gpu(const DecodeMerge& merge, const gpu::Stream& stream);

}  // namespace kvlane
