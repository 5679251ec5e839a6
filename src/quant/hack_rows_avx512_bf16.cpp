// Rows to floats and back with AVX-512 (quant/hack_rows_avx512.h), rounded by the processor's own
// conversion to BF16.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_rows_avx512.h"

namespace kvlane::hack {
namespace {

// The processor's conversion takes subnormal numbers for zeros, and keeps what is in NaN.
inline __mmask16 unusual(__m512 x) {
  constexpr int kQuietNan = 0x01;
  constexpr int kSignallingNan = 0x80;
  constexpr int kSubnormal = 0x20;
  return _mm512_fpclass_ps_mask(x, kQuietNan | kSignallingNan | kSubnormal);
}

struct Native {
  template <int kVectors>
  static void store(std::uint16_t* to, const __m512 (&x)[kVectors]) {
    unsigned slow = 0;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) slow |= unusual(x[i]);
    if (slow != 0) [[unlikely]] {
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) store_any(to + 16 * i, x[i]);
    } else if constexpr (kVectors == 1) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x[0]));
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; i += 2) {
        _mm512_storeu_si512(to + 16 * i, (__m512i)_mm512_cvtne2ps_pbh(x[i + 1], x[i]));
      }
    }
  }
};

}  // namespace

RowKernels row_kernels_avx512_bf16() { return {widen, narrow<Native>}; }

}  // namespace kvlane::hack
