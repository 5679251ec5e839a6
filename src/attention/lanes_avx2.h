// The 8 lanes of a vector as one number, or some of them. For AVX2 files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace kvlane {

// Lanes 0 ... count - 1: none or all where count is less or more.
static inline __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline float greatest_lane(__m256 x) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

static inline float least_lane(__m256 x) {
  __m128 least = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  least = _mm_min_ps(least, _mm_movehl_ps(least, least));
  return _mm_cvtss_f32(_mm_min_ss(least, _mm_movehdup_ps(least)));
}

static inline float sum_of_lanes(__m256 x) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

static inline int sum_of_lanes(__m256i x) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

}  // namespace kvlane
