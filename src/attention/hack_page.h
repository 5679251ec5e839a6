// Attention over pages whose K and V are codes of few bits (spec/hack.md), without opening them: a
// tile of query rows over one page.
//
// With a row's query in 8 bits, q = a * u (u from -127 to 127), and a partition's keys m + s * c,
//   sum of q k = m * (sum of q) + s * (a * (sum of u c) + h * (sum of q - a u)),   h = (2^bits - 1)
//   / 2
// The sum of u c is one of integers, the only one that touches codes; all else is one number for a
// row and partition, or for a token. The last term takes back what rounding q does to the mean code
// h: what is left of the error meets c - h only.
//
// Weights have 8 bits, too: w = round(255 * 2^(score - M)) with M the greatest score of the page,
// so that pages of small weights lose no more than others. With values m + s * c of a channel,
//   sum of w v = s * (sum of w c) + m * (sum of w)
// and the same w go into the state's sum, so that they add up to 1 in the end. Sums of codes are
// needed nowhere: the query has no minimum, and the weights' is 0.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/page_kernel.h"
#include "quant/hack_layout.h"

namespace kvlane {

// The narrowest partitions are of 32 channels.
inline constexpr int kHackPartitionsMax = kTileHeadDimMax / 32;

// A tile's rows in 8 bits; scores are in units of log2, so their scale is in here.
struct HackQuery {
  alignas(64) std::int8_t codes[kTileRows][kTileHeadDimMax];
  float scale[kTileRows];                       // a
  float sum[kTileRows][kHackPartitionsMax];     // of q
  float centre[kTileRows][kHackPartitionsMax];  // h * (sum of q - a u)
};

// What pages of a cache have in common.
struct HackShape {
  hack::Plane k, v;
  hack::PageLayout layout;
  int head_dim;
};

// The kernels of a tier. A row's arithmetic is the same whatever else is in its tile.
struct HackKernel {
  // The rows of `query`, as many as the tile will have.
  void (*prepare)(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to);
  // Adds a page, of which every row sees all 64 tokens, to the states of `tile`. `next`: memory
  // that is wanted next, or nothing.
  void (*attend)(const HackShape& shape, const HackQuery& query, const std::byte* page,
                 std::span<const std::byte> next, StateTile& tile);
};

HackKernel hack_kernel_scalar();
HackKernel hack_kernel_avx512(const HackShape& shape);

inline HackKernel hack_kernel(const HackShape& shape, Isa isa) {
  return isa == Isa::kAvx512 ? hack_kernel_avx512(shape) : hack_kernel_scalar();
}

}  // namespace kvlane
