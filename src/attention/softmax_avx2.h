// The weights of a row over a page, with AVX2. For files of that tier only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "attention/exp2_avx2.h"
#include "attention/lanes_avx2.h"
#include "format/shape.h"

namespace kvlane {

// Scores of a row to probabilities (0 where invisible), in the same place; updates max and sum.
// Returns the factor for what was accumulated before.
static inline float softmax_row(float* scores, int visible, float scale, float& max, float& sum) {
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 top = _mm256_set1_ps(max);
  for (int i = 0; i < kBlockTokens; i += 8) {
    const __m256 seen = _mm256_castsi256_ps(first_lanes(visible - i));
    const __m256 scaled = _mm256_mul_ps(_mm256_load_ps(scores + i), _mm256_set1_ps(scale));
    const __m256 score = _mm256_blendv_ps(lowest, scaled, seen);
    _mm256_store_ps(scores + i, score);
    top = _mm256_max_ps(top, score);
  }
  const float new_max = greatest_lane(top);
  __m256 total = _mm256_setzero_ps();
  for (int i = 0; i < kBlockTokens; i += 8) {
    const __m256 weight =
        exp2_negative(_mm256_sub_ps(_mm256_load_ps(scores + i), _mm256_set1_ps(new_max)));
    total = _mm256_add_ps(total, weight);
    _mm256_store_ps(scores + i, weight);
  }
  const float keep = _mm256_cvtss_f32(exp2_negative(_mm256_set1_ps(max - new_max)));
  max = new_max;
  sum = sum * keep + sum_of_lanes(total);
  return keep;
}

}  // namespace kvlane
