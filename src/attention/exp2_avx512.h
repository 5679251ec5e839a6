// Powers of two for weights with AVX-512. For such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace kvlane {

// 2^x for x <= 0; below about -150 it is 0. Relative error under 2e-7: Taylor of degree 6 on
// [-1/2, 1/2], where its first dropped term is 1.2e-7.
static inline __m512 exp2_negative(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-160.0F));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.5403530e-4F);
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(1.3333558e-3F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(9.6181291e-3F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(5.5504109e-2F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(2.4022651e-1F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(6.9314718e-1F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, whole);
}

// The same for weights that become 8 bits, of finite x: relative error under 5e-5 (degree 4).
static inline __m512 exp2_coarse(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(9.6181291e-3F);
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(5.5504109e-2F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(2.4022651e-1F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(6.9314718e-1F));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, whole);
}

}  // namespace kvlane
