// Attention over pages whose K and V are codes of few bits (spec/hack.md), without opening them: a
// tile of query rows over one page.
//
// A row's query has 8 bits, q = a * u (u from -127 to 127), and so have weights: they are
// w = round(255 * x / X) with X the greatest x of the page, so that pages of small weights lose no
// more than others. Sums of u c and of w c, over codes c, are sums of integers and all that touches
// codes; the rest is a few numbers for a row, a token or a channel. With h the middle code:
//
//   K by token         score = m * (sum of q) + s * (a * (sum of u c) + h * (sum of q - a u))
//                      over each partition. The last term takes back what rounding q does to h.
//   K by both          score = (sum of q m) + s * a * (sum of u (c - h));
//                      the first term is the same for all tokens of the page
//   V by channel       x = 2^(score - M); out = s * (sum of w c) + m * (sum of w); the same w go
//                      into the state's sum, so that they add up to 1 in the end
//   V by both          x = s * 2^(score - M); out = (sum of w (c - h)) + m * (sum of 2^(score - M))
//
// with M the greatest score of the page. Sums of codes are needed nowhere, as neither queries nor
// weights have a minimum. Where channels are mixed queries are, too, and outputs are mixed back
// once for a run of pages.
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
  alignas(64) std::int8_t codes[kTileRows][kTileHeadDimMax];  // u
  alignas(64) float values[kTileRows][kTileHeadDimMax];       // q, for K by both
  float scale[kTileRows];                                     // a
  float sum[kTileRows][kHackPartitionsMax];                   // of q
  // h * (sum of q - a u); for K by both, of one partition, h * (sum of -a u).
  float centre[kTileRows][kHackPartitionsMax];
  // Of the complete form (attention/hack_complete_page.h), for each partition: what the code 0
  // stands for, and a code's unit. There `sum` is of what codes stand for.
  float origin[kTileRows][kHackPartitionsMax];
  float unit[kTileRows][kHackPartitionsMax];
};

// What pages of a cache have in common.
struct HackShape {
  hack::Plane k, v;
  hack::PageLayout layout;
  int key_dim, value_dim;
  bool mix;

  // Channels of K, or tokens of V, whose products make one sum of integers.
  int key_partition() const { return k.axis == hack::Axis::kBoth ? key_dim : k.partition; }
  int value_partition() const { return v.axis == hack::Axis::kBoth ? kBlockTokens : v.partition; }
};

// A page for a tile.
struct HackItem {
  const HackQuery* query;
  const std::byte* page;
  std::span<const std::byte> next;  // memory that is wanted later (SealedItem), or nothing
  StateTile* tile;
  // Each row sees the page's tokens [0, visible), at least one; null: every row sees all 64.
  const int* visible = nullptr;
};

// Scores of tokens that a row does not see become those of weight 0: below all others, and finite.
// Static, as files of one instruction-set tier call it.
static inline void hide_unseen(const HackItem& item, float (*scores)[kBlockTokens]) {
  for (int row = 0; item.visible != nullptr && row < item.tile->rows; ++row) {
    for (int token = item.visible[row]; token < kBlockTokens; ++token) {
      scores[row][token] = -0x1p126F;
    }
  }
}

// The kernels of a tier. A row's arithmetic is the same whatever else is in its tile.
struct HackKernel {
  // The rows of `query`, as many as the tile will have.
  void (*prepare)(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to);
  // Adds pages to the states of tiles, in this order.
  void (*attend)(const HackShape& shape, std::span<const HackItem> items);
};

// A row of a tile's query in the basis of the codes, [head_dim]: scaled, and mixed if channels are.
void load_hack_query_scalar(const HackShape& shape, const PageQuery& query, int row, float* to);
void load_hack_query_avx2(const HackShape& shape, const PageQuery& query, int row, float* to);
void load_hack_query_avx512(const HackShape& shape, const PageQuery& query, int row, float* to);

HackKernel hack_kernel_scalar();
HackKernel hack_kernel_avx2();
HackKernel hack_kernel_avx512_bf16();

inline HackKernel hack_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa == Isa::kAvx512Bf16) return hack_kernel_avx512_bf16();
    if (isa >= Isa::kAvx2) return hack_kernel_avx2();
  }
  return hack_kernel_scalar();
}

}  // namespace kvlane
