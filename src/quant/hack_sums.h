// Sums of the codes of partitions: what attention in the complete form of HACK's arithmetic needs
// beside codes (spec/hack.md, section 4).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cpu/isa.h"
#include "quant/hack_layout.h"

namespace kvlane::hack {

// codes: of K where `plane` is by token, of V where it is by channel. sums: in the order of
// entries, sum_bytes() each. Both are aligned to 64.
using SumKernel = void (*)(const Plane& plane, int head_dim, const std::byte* codes,
                           std::byte* sums);

void sum_codes_scalar(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums);
void sum_codes_avx2(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums);
void sum_codes_avx512_bf16(const Plane& plane, int head_dim, const std::byte* codes,
                           std::byte* sums);

inline SumKernel sum_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa == Isa::kAvx512Bf16) return sum_codes_avx512_bf16;
    if (isa >= Isa::kAvx2) return sum_codes_avx2;
  }
  return sum_codes_scalar;
}

}  // namespace kvlane::hack
