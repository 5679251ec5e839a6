// Rotated rows with AVX-512.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/rotation.h"
#include "ops/rotation_lanes.h"

namespace kvlane {
namespace {

struct Avx512 {
  using Floats = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;  // whose sums of four vectors fit into the registers

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace

void rotate_rows_avx512(const float* x, int rows, const float* rotation, int inner, int width,
                        float* y) {
  rotation_lanes::rotate_rows<Avx512>(x, rows, rotation, inner, width, y);
}

}  // namespace kvlane
