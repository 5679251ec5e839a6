// Prefill attention on codes on a GPU: queries are prepared (attention/hack_decode_gpu.h), units of
// sealed pages leave partial states, and attention over rows goes on with these
// (attend_window_on_gpu() of attention/prefill_gpu.h), in the same units. Device code is in
// attention/hack_prefill_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_decode_gpu.h"
#include "attention/hack_prefill_batch.h"
#include "attention/prefill_gpu.h"

namespace kvlane {

// What a kernel is compiled for: a width of prefill_kernel() and the partitions of a kind. Bits are
// looked at when a page is unpacked.
template <int kDimension, int kTileCount, int kBlockCount, int kPart>
struct HackPrefillKernel {
  static constexpr int kDim = kDimension;
  static constexpr int kTiles = kTileCount;
  static constexpr int kBlocks = kBlockCount;  // of threads on a multiprocessor
  static constexpr int kPartition = kPart;
};
inline constexpr std::array<int, 4> kHackPartitions = {0, 32, 64, 128};

template <std::size_t kIndex, class Body>
void with_hack_prefill_kernel_at(int partition, int head_dim, const Body& body) {
  constexpr PrefillKernelShape kShape = kPrefillKernels[kIndex / kHackPartitions.size()];
  constexpr int kPartition = kHackPartitions[kIndex % kHackPartitions.size()];
  if (kPartition != partition || prefill_kernel(head_dim)->dim != kShape.dim) return;
  body(HackPrefillKernel<kShape.dim, kShape.tiles, kShape.blocks, kPartition>{});
}
template <class Body, std::size_t... kIndices>
void with_hack_prefill_kernel_of(int partition, int head_dim, const Body& body,
                                 std::index_sequence<kIndices...> /*all*/) {
  (with_hack_prefill_kernel_at<kIndices>(partition, head_dim, body), ...);
}

// Calls body(HackPrefillKernel<...>{}) for the kernel of this partition and width, which there is
// for shapes that hack_prefill_shape() takes.
template <class Body>
void with_hack_prefill_kernel(int partition, int head_dim, const Body& body) {
  with_hack_prefill_kernel_of(
      partition, head_dim, body,
      std::make_index_sequence<std::size(kPrefillKernels) * kHackPartitions.size()>());
}

// Shared memory for two pages, behind HackPrefillShared, and for what is read behind the end of
// metadata, to no effect, where head_dim is less than the kernel's.
constexpr std::size_t hack_prefill_pages_bytes(const hack::PageLayout& layout, int kernel_dim) {
  return 2 * layout.bytes + hack::kEntryBytes * kernel_dim;
}

// For plan_prefill(): that of prefill_shape(). kInvalidArgument for shapes that have no kernel.
Result<PrefillShape> hack_prefill_shape(const HackKind& kind, int heads, int kv_heads,
                                        int head_dim);

// `units` is [count], from plan_prefill() with the shape above. It and everything that `batch`
// points to lie in memory that the stream's device can reach, until the stream has done the launch.
// States of rows that no span has stay as they are. Returns when the launch is in the stream; a
// count of 0 launches nothing. kInvalidArgument for shapes that have no kernel and addresses that
// are not multiples of 16, of slabs of 64.
Status attend_hack_prefill_on_gpu(const HackKind& kind, const HackPrefillBatch& batch,
                                  const PrefillUnit* units, std::size_t count,
                                  const gpu::Stream& stream);

}  // namespace kvlane
