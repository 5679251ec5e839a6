// Attention over pages of codes (spec/hack.md) in the form of HACK's paper, for pages with
// partitions: queries and weights have 8 bits and a minimum, too.
//
// Each partition of a row's query, and of its weights 2^(score - max), becomes x = a + e u with u
// from -128 to 127: u is round((x - least) / e) - 128, e = (greatest - least) / 255, a = least +
// 128 e. With y = m + s c of a partition of K or V, and X the sum of its x,
//
//   sum of x y = e s * (sum of u c) + m * X + a s * (sum of c)
//
// which is what attention/hack_page.h has, but for the last term: it wants sums of codes. They lie
// in the slab behind all else, or are taken for each tile anew (no summation elimination, as the
// paper calls it). The state's sum is of weights before they are rounded.
//
// The paper's u begin at 0. Here they have a sign, as dot products take codes without one and
// queries and weights with one; a x is the same.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_page.h"
#include "quant/hack_sums.h"

namespace kvlane {

// Partitions of a page's K, or V: [head_dim / 32][64 tokens] or [64 / 32][head_dim] at most. Their
// sums have 2 bytes.
inline constexpr int kHackEntriesMax = kHackPartitionsMax * kBlockTokens;
static_assert(kHackEntriesMax >= 2 * kTileHeadDimMax);
inline constexpr std::size_t kHackSumsBytesMax = std::size_t{2} * kHackEntriesMax;

// Kernels that use `codes`, `sum`, `origin` and `unit` of HackQuery. Of shapes without partitions
// they know nothing; where shape.layout has no sums they take them.
HackKernel hack_complete_kernel_scalar();
HackKernel hack_complete_kernel_avx2();
HackKernel hack_complete_kernel_avx512_bf16();

inline HackKernel hack_complete_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa == Isa::kAvx512Bf16) return hack_complete_kernel_avx512_bf16();
    if (isa >= Isa::kAvx2) return hack_complete_kernel_avx2();
  }
  return hack_complete_kernel_scalar();
}

}  // namespace kvlane
