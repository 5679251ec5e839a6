// A run of channels in registers, and its butterflies. For AVX-512 files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace kvlane {

// The longest run: as many vectors as leave registers for what goes on beside them.
inline constexpr int kRunVectorsMax = 16;

// Of lanes i and i + kStep the first becomes the sum, the second the difference. The product with 1
// or -1 is exact, so a multiply-add is one rounded sum.
template <int kStep>
static inline __m512 mix_lanes(__m512 x) {
  constexpr __mmask16 kSecond = kStep == 1   ? 0xaaaa
                                : kStep == 2 ? 0xcccc
                                : kStep == 4 ? 0xf0f0
                                             : 0xff00;
  __m512 partner;
  if constexpr (kStep == 1) partner = _mm512_permute_ps(x, 0xb1);
  if constexpr (kStep == 2) partner = _mm512_permute_ps(x, 0x4e);
  if constexpr (kStep == 4) partner = _mm512_shuffle_f32x4(x, x, 0xb1);
  if constexpr (kStep == 8) partner = _mm512_shuffle_f32x4(x, x, 0x4e);
  const __m512 sign = _mm512_mask_blend_ps(kSecond, _mm512_set1_ps(1.0F), _mm512_set1_ps(-1.0F));
  return _mm512_fmadd_ps(x, sign, partner);
}

// What a run of 16 * kVectors channels is multiplied with in the end.
template <int kVectors>
static inline __m512 mix_scale() {
  const __m512 n = _mm512_set1_ps(16.0F * kVectors);
  return _mm512_div_ps(_mm512_set1_ps(1.0F), _mm512_sqrt_ps(n));
}

template <int kVectors>
static inline void mix_run(__m512 (&x)[kVectors], __m512 scale) {
  static_assert(kVectors <= kRunVectorsMax);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    x[i] = mix_lanes<8>(mix_lanes<4>(mix_lanes<2>(mix_lanes<1>(x[i]))));
  }
#pragma GCC unroll 4
  for (int step = 1; step < kVectors; step *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      if ((i & step) != 0) continue;
      const __m512 a = x[i];
      const __m512 b = x[i + step];
      x[i] = _mm512_add_ps(a, b);
      x[i + step] = _mm512_sub_ps(a, b);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) x[i] = _mm512_mul_ps(x[i], scale);
}

}  // namespace kvlane
