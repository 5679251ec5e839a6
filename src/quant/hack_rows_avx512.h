// Rows to floats and back with AVX-512: a run of channels is in registers from BF16 to float, or
// from float to BF16, and mixed there. About 10 operations for 16 values beside those of mixing.
// Narrow::store() rounds a run: tiers differ in that alone. For such files only: all is static, so
// that no tier has the code of another.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "format/shape.h"
#include "quant/hack_rows.h"
#include "quant/hadamard_avx512.h"

namespace kvlane::hack {

// Rows that are not mixed are cut into runs of any length that divides a page.
inline constexpr int kPlainVectors = 4;

static inline __m512 load_bf16(const std::uint16_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// As to_bf16(), with one NaN.
static inline void store_any(std::uint16_t* to, __m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(to),
      _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(kNanBf16))));
}

// Magnitudes are compared as integers, so that NaN is above all.
template <int kVectors, bool kMix>
static inline float widen_runs(const std::uint16_t* rows, std::ptrdiff_t count, float* values) {
  const __m512 scale = mix_scale<kVectors>();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  for (std::ptrdiff_t at = 0; at < count; at += 16 * kVectors) {
    __m512 x[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) x[i] = load_bf16(rows + at + 16 * i);
    if constexpr (kMix) mix_run(x, scale);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      _mm512_store_ps(values + at + 16 * i, x[i]);
      most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(x[i]), magnitude));
    }
  }
  const int bits = _mm512_reduce_max_epi32(most);
  float greatest;
  __builtin_memcpy(&greatest, &bits, sizeof(greatest));
  return greatest;
}

template <class Narrow, int kVectors, bool kMix>
static inline void narrow_runs(const float* values, std::ptrdiff_t count, std::uint16_t* rows) {
  const __m512 scale = mix_scale<kVectors>();
  for (std::ptrdiff_t at = 0; at < count; at += 16 * kVectors) {
    __m512 x[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) x[i] = _mm512_load_ps(values + at + 16 * i);
    if constexpr (kMix) mix_run(x, scale);
    Narrow::store(rows + at, x);
  }
}

static inline float widen(const std::uint16_t* rows, int head_dim, bool mix, float* values) {
  const std::ptrdiff_t count = std::ptrdiff_t{kBlockTokens} * head_dim;
  if (!mix) return widen_runs<kPlainVectors, false>(rows, count, values);
  switch (head_dim & -head_dim) {
    case 16: return widen_runs<1, true>(rows, count, values);
    case 32: return widen_runs<2, true>(rows, count, values);
    case 64: return widen_runs<4, true>(rows, count, values);
    case 128: return widen_runs<8, true>(rows, count, values);
    default: return widen_runs<16, true>(rows, count, values);
  }
}

template <class Narrow>
static inline void narrow(float* values, int head_dim, bool mix, std::uint16_t* rows) {
  const std::ptrdiff_t count = std::ptrdiff_t{kBlockTokens} * head_dim;
  if (!mix) return narrow_runs<Narrow, kPlainVectors, false>(values, count, rows);
  switch (head_dim & -head_dim) {
    case 16: return narrow_runs<Narrow, 1, true>(values, count, rows);
    case 32: return narrow_runs<Narrow, 2, true>(values, count, rows);
    case 64: return narrow_runs<Narrow, 4, true>(values, count, rows);
    case 128: return narrow_runs<Narrow, 8, true>(values, count, rows);
    default: return narrow_runs<Narrow, 16, true>(values, count, rows);
  }
}

}  // namespace kvlane::hack
