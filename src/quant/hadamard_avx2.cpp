// Mixing channels with AVX2: 64 channels are held in registers for the steps among them, the first
// three of which cross lanes, 2 operations a vector each. Longer runs take what is left, one step
// or two, in a second pass over what is in the nearest cache.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>

#include "quant/hadamard.h"

namespace kvlane {
namespace {

constexpr int kLanes = 8;
constexpr int kPartVectors = 8;  // of the first pass, at most
constexpr int kPart = kLanes * kPartVectors;

// Of lanes i and i + kStep the first becomes the sum, the second the difference. The product with 1
// or -1 is exact, so a multiply-add is one rounded sum.
template <int kStep>
inline __m256 mix_lanes(__m256 x) {
  constexpr int kSecond = kStep == 1 ? 0xaa : kStep == 2 ? 0xcc : 0xf0;
  __m256 partner;
  if constexpr (kStep == 1) partner = _mm256_permute_ps(x, 0xb1);
  if constexpr (kStep == 2) partner = _mm256_permute_ps(x, 0x4e);
  if constexpr (kStep == 4) partner = _mm256_permute2f128_ps(x, x, 0x01);
  const __m256 sign = _mm256_blend_ps(_mm256_set1_ps(1.0F), _mm256_set1_ps(-1.0F), kSecond);
  return _mm256_fmadd_ps(x, sign, partner);
}

// All steps among kVectors vectors, neighbours first.
template <int kVectors>
inline void mix_vectors(__m256 (&x)[kVectors]) {
#pragma GCC unroll 4
  for (int step = 1; step < kVectors; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      if ((i & step) != 0) continue;
      const __m256 a = x[i];
      const __m256 b = x[i + step];
      x[i] = _mm256_add_ps(a, b);
      x[i + step] = _mm256_sub_ps(a, b);
    }
  }
}

inline __m256 scale_of(int n) {
  return _mm256_div_ps(_mm256_set1_ps(1.0F), _mm256_sqrt_ps(_mm256_set1_ps(static_cast<float>(n))));
}

// Runs of 8 * kVectors channels. kLast: no step is left.
template <int kVectors, bool kLast>
void mix_parts(float* run, std::ptrdiff_t values) {
  const __m256 scale = scale_of(kLanes * kVectors);
  for (const float* const end = run + values; run < end; run += kLanes * kVectors) {
    __m256 x[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      x[i] = mix_lanes<4>(mix_lanes<2>(mix_lanes<1>(_mm256_loadu_ps(run + kLanes * i))));
    }
    mix_vectors(x);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      _mm256_storeu_ps(run + kLanes * i, kLast ? _mm256_mul_ps(x[i], scale) : x[i]);
    }
  }
}

// Runs of kParts parts, one by one: a part is still near when the others are mixed with it.
template <int kParts>
void mix_long_runs(float* run, std::ptrdiff_t values) {
  const __m256 scale = scale_of(kParts * kPart);
  for (const float* const end = run + values; run < end; run += kParts * kPart) {
    mix_parts<kPartVectors, false>(run, kParts * kPart);
    for (int at = 0; at < kPart; at += kLanes) {
      __m256 x[kParts];
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) x[i] = _mm256_loadu_ps(run + kPart * i + at);
      mix_vectors(x);
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) {
        _mm256_storeu_ps(run + kPart * i + at, _mm256_mul_ps(x[i], scale));
      }
    }
  }
}

}  // namespace

void mix_channels_avx2(float* rows, int count, int head_dim) {
  const std::ptrdiff_t values = std::ptrdiff_t{count} * head_dim;
  switch (head_dim & -head_dim) {
    case 8: return mix_parts<1, true>(rows, values);
    case 16: return mix_parts<2, true>(rows, values);
    case 32: return mix_parts<4, true>(rows, values);
    case 64: return mix_parts<8, true>(rows, values);
    case 128: return mix_long_runs<2>(rows, values);
    case 256: return mix_long_runs<4>(rows, values);
    default: return mix_channels_scalar(rows, count, head_dim);
  }
}

}  // namespace kvlane
