// Pages of few channels with AVX2, in FP32.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/narrow_lanes.h"
#include "attention/softmax_avx2.h"

namespace kvlane {
namespace {

struct Avx2 {
  using Floats = __m256;
  struct Pair {
    Floats low, high;
  };
  static constexpr int kLanes = 8;
  // Of four rows: eight sums and what they are made of fit into 16 registers.
  static constexpr int kTokens = 2;
  static constexpr int kChannels = 2;
  static constexpr int kLoadsOfLine = 2;

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Pair widen(const std::uint16_t* words) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)))};
  }
  static float weigh(float* scores, float& max, float& sum) {
    return softmax_row(scores, kBlockTokens, 1.0F, max, sum);
  }
};

}  // namespace

void attend_narrow_avx2(const NarrowItem& item) { narrow_lanes::attend<Avx2>(item); }

}  // namespace kvlane
