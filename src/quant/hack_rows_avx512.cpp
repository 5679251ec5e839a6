// Rows to floats and back with AVX-512 (quant/hack_rows_avx512.h), rounded to BF16 by five integer
// operations.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_rows_avx512.h"

namespace kvlane::hack {
namespace {

struct Integers {
  template <int kVectors>
  static void store(std::uint16_t* to, const __m512 (&x)[kVectors]) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) store_any(to + 16 * i, x[i]);
  }
};

}  // namespace

RowKernels row_kernels_avx512() { return {widen, narrow<Integers>}; }

}  // namespace kvlane::hack
