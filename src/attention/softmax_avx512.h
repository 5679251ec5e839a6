// The weights of a row over a page, with AVX-512. For files of that tier only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "attention/exp2_avx512.h"
#include "format/shape.h"

namespace kvlane {

// Bits of the visible tokens among the 16 from `first` on.
static inline __mmask16 visible_mask(int visible, int first) {
  const int count = visible - first;
  if (count >= 16) return 0xffff;
  return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << count) - 1U);
}

// Scores of a row to probabilities (0 where invisible), in the same place or another; updates max
// and sum. Returns the factor for what was accumulated before.
static inline float softmax_row(const float* scores, int visible, float scale, float& max,
                                float& sum, float* weights) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 scaled[4];
  __m512 top = _mm512_set1_ps(max);
  for (int i = 0; i < 4; ++i) {
    const __mmask16 mask = visible_mask(visible, 16 * i);
    scaled[i] =
        _mm512_mask_mul_ps(lowest, mask, _mm512_loadu_ps(scores + 16 * i), _mm512_set1_ps(scale));
    top = _mm512_max_ps(top, scaled[i]);
  }
  const float new_max = _mm512_reduce_max_ps(top);
  __m512 total = _mm512_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    const __m512 weight =
        _mm512_maskz_mov_ps(visible_mask(visible, 16 * i),
                            exp2_negative(_mm512_sub_ps(scaled[i], _mm512_set1_ps(new_max))));
    total = _mm512_add_ps(total, weight);
    _mm512_storeu_ps(weights + 16 * i, weight);
  }
  const float keep =
      _mm512_cvtss_f32(exp2_negative(_mm512_sub_ps(_mm512_set1_ps(max), _mm512_set1_ps(new_max))));
  max = new_max;
  sum = sum * keep + _mm512_reduce_add_ps(total);
  return keep;
}

}  // namespace kvlane
