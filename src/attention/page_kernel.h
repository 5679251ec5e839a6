// The innermost step of attention: a tile of query rows over one 16-bit page.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/partial_state.h"
#include "cpu/isa.h"
#include "format/shape.h"

namespace kvlane {

// What a page kernel reads.
struct PageQuery {
  // One row each, [parts][part_stride] in BF16; the query is the sum of its parts. One part is what
  // BF16 models compute with; F32 models need two, or rounding the query would double the error
  // that rounding K makes.
  const std::uint16_t* q[kTileRows];
  int parts;  // 1 or 2
  int part_stride;
  int key_dim;             // channels of the page's K rows: as many of a query's first
  int visible[kTileRows];  // each row sees the page's tokens [0, visible): 1 ... 64
  int tokens;              // largest `visible`: rows of the page beyond it are not read
  float scale;             // of scores: log2(e) / sqrt(head_dim)
  // Memory that is wanted next, or nothing: kernels may prefetch it while they compute.
  std::span<const std::byte> next = {};
};

// Adds one page, K[64][key_dim] then V[64][tile.head_dim] in BF16, to the states of `tile`.
//
// The arithmetic of a row (order of every sum, every rounding) is the same whatever else is in the
// tile: that makes prefill in any chunking and decoding step by step agree in every bit.
using PageKernel = void (*)(const PageQuery& query, const std::uint16_t* page, StateTile& tile);

void attend_page_scalar(const PageQuery& query, const std::uint16_t* page, StateTile& tile);
void attend_page_avx2(const PageQuery& query, const std::uint16_t* page, StateTile& tile);
void attend_page_avx512(const PageQuery& query, const std::uint16_t* page, StateTile& tile);

// The kernel of a tier.
inline PageKernel page_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return attend_page_avx512;
    if (isa >= Isa::kAvx2) return attend_page_avx2;
  }
  return attend_page_scalar;
}

// What it uses, for people.
inline const char* page_kernel_description(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
    case Isa::kAvx512Bf16: return "AVX-512 in FP32";
    case Isa::kAvx2: return "AVX2 in FP32";
    default: return "scalar loop";
  }
}

}  // namespace kvlane
