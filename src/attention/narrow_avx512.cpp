// Pages of few channels with AVX-512, in FP32.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/narrow_lanes.h"
#include "attention/softmax_avx512.h"

namespace kvlane {
namespace {

struct Avx512 {
  using Floats = __m512;
  struct Pair {
    Floats low, high;
  };
  static constexpr int kLanes = 16;
  static constexpr int kTokens = 4;    // vectors of tokens at a time
  static constexpr int kChannels = 4;  // vectors of channels at a time
  static constexpr int kLoadsOfLine = 1;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Pair widen(const std::uint16_t* words) {
    const __m512i both = _mm512_loadu_si512(words);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))};
  }
  static float weigh(float* scores, float& max, float& sum) {
    return softmax_row(scores, kBlockTokens, 1.0F, max, sum, scores);
  }
};

}  // namespace

void attend_narrow_avx512(const NarrowItem& item) { narrow_lanes::attend<Avx512>(item); }

}  // namespace kvlane
