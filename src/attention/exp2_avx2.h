// Powers of two for weights with AVX2. For such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace kvlane {

// p * 2^whole, or 0 where x is below -126: floats are not normal there any more. p is from 0.7 to
// 1.42, so adding to its exponent multiplies.
static inline __m256 exp2_scaled(__m256 x, __m256 p, __m256 whole) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
  const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), exponent);
  const __m256 normal = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0F), _CMP_GE_OQ);
  return _mm256_and_ps(_mm256_castsi256_ps(bits), normal);
}

// 2^x for x <= 0; below -126 it is 0. The polynomial and its error are those of exp2_avx512.h.
static inline __m256 exp2_negative(__m256 x) {
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 rest = _mm256_sub_ps(x, whole);
  __m256 p = _mm256_set1_ps(1.5403530e-4F);
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(1.3333558e-3F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(9.6181291e-3F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(5.5504109e-2F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(2.4022651e-1F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(6.9314718e-1F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(1.0F));
  return exp2_scaled(x, p, whole);
}

// The same for weights that become 8 bits: relative error under 5e-5 (degree 4).
static inline __m256 exp2_coarse(__m256 x) {
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 rest = _mm256_sub_ps(x, whole);
  __m256 p = _mm256_set1_ps(9.6181291e-3F);
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(5.5504109e-2F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(2.4022651e-1F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(6.9314718e-1F));
  p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(1.0F));
  return exp2_scaled(x, p, whole);
}

}  // namespace kvlane
