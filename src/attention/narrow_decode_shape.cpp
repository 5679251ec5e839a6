// What decode attention over narrow pages on a GPU has kernels for.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "attention/narrow_decode_gpu.h"

namespace kvlane {

int narrow_width_max(std::span<const HeadWidths> widths) {
  int most = 0;
  for (const HeadWidths& head : widths) most = std::max({most, head.k, head.v});
  return most;
}

Result<NarrowDecodeShape> narrow_decode_shape(int heads, std::span<const HeadWidths> widths,
                                              int head_dim, int multiprocessors) {
  const int kv_heads = static_cast<int>(widths.size());
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || multiprocessors < 1) {
    return invalid_argument("no attention of " + std::to_string(heads) + " heads over " +
                            std::to_string(kv_heads) + " KV heads on " +
                            std::to_string(multiprocessors) + " multiprocessors");
  }
  if (head_dim > kNarrowWidthMax || head_dim % kNarrowWidthStep != 0) {
    return invalid_argument(
        "attention over narrow pages on a GPU needs a head_dim that is a multiple of " +
        std::to_string(kNarrowWidthStep) + " up to " + std::to_string(kNarrowWidthMax) + ", not " +
        std::to_string(head_dim));
  }
  for (const HeadWidths& head : widths) {
    for (const int width : {head.k, head.v}) {
      if (width >= kNarrowWidthStep && width <= head_dim && width % kNarrowWidthStep == 0) continue;
      return invalid_argument(
          "attention over narrow pages on a GPU needs widths that are multiples of " +
          std::to_string(kNarrowWidthStep) + " up to a head_dim of " + std::to_string(head_dim) +
          ", not " + std::to_string(width));
    }
  }
  const NarrowDecodeKernel* const kernel =
      narrow_decode_kernel(heads / kv_heads, narrow_width_max(widths));
  return NarrowDecodeShape{.heads = heads, .machines = multiprocessors * kernel->blocks};
}

}  // namespace kvlane
