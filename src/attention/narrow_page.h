// Attention over sealed pages of few channels in 16 bits (format `zack`, spec/slab_zack.md): a tile
// of query rows over one page.
//
// Such a page is K as words [k / 2][64 tokens], then V as words [32][v channels]. A word is two
// BF16 values, the first in its low half: of K channels 2 i and 2 i + 1 of a token, of V tokens 2 t
// and 2 t + 1 of a channel. So a vector of words is as many tokens, or channels, and nothing is
// summed over lanes; whole vectors are read whatever the widths are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/partial_state.h"
#include "cpu/isa.h"
#include "format/head_widths.h"
#include "format/shape.h"

namespace kvlane {

// Queries of a tile in F32, times the scale of scores.
using NarrowQueries = float[kTileRows][kTileHeadDimMax];

struct NarrowItem {
  const float (*q)[kTileHeadDimMax];  // of a tile's rows
  HeadWidths dims;                    // multiples of 16; tile->head_dim is dims.v
  const std::uint16_t* page;          // aligned to 64
  std::span<const std::byte> next;    // memory that is wanted next, or nothing
  StateTile* tile;
};

// Adds the page's 64 tokens to the tile's states. A row's arithmetic is the same whatever else is
// in the tile.
using NarrowKernel = void (*)(const NarrowItem& item);

void attend_narrow_scalar(const NarrowItem& item);
void attend_narrow_avx2(const NarrowItem& item);
void attend_narrow_avx512(const NarrowItem& item);

inline NarrowKernel narrow_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return attend_narrow_avx512;
    if (isa >= Isa::kAvx2) return attend_narrow_avx2;
  }
  return attend_narrow_scalar;
}

}  // namespace kvlane
