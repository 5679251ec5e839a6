// Rows in BF16 to the floats that pages are made of, and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace kvlane::hack {

// What every NaN becomes in BF16: tiers do not agree on its sign and payload before.
inline constexpr std::uint16_t kNanBf16 = 0x7fc0;

// The kernels of a tier; all give the same bits. rows and values are [64][head_dim], with head_dim
// a multiple of 16 up to 256; values are aligned to 64, rows to 2.
struct RowKernels {
  // `rows` are finite. Gives the greatest magnitude of `values`, NaN being greater than all: what
  // is mixed can be infinite, or a difference of what is.
  float (*widen)(const std::uint16_t* rows, int head_dim, bool mix, float* values);
  // Rounds half to even. Overwrites `values`.
  void (*narrow)(float* values, int head_dim, bool mix, std::uint16_t* rows);
};

RowKernels row_kernels_scalar();
RowKernels row_kernels_avx2();
RowKernels row_kernels_avx512();
RowKernels row_kernels_avx512_bf16();

inline RowKernels row_kernels(Isa isa) {
  if constexpr (kX86) {
    if (isa == Isa::kAvx512Bf16) return row_kernels_avx512_bf16();
    if (isa >= Isa::kAvx512) return row_kernels_avx512();
    if (isa >= Isa::kAvx2) return row_kernels_avx2();
  }
  return row_kernels_scalar();
}

}  // namespace kvlane::hack
