// Rotated rows with AVX2.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/rotation.h"
#include "ops/rotation_lanes.h"

namespace kvlane {
namespace {

struct Avx2 {
  using Floats = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 2;  // whose sums of four vectors fit into the registers

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
};

}  // namespace

void rotate_rows_avx2(const float* x, int rows, const float* rotation, int inner, int width,
                      float* y) {
  rotation_lanes::rotate_rows<Avx2>(x, rows, rotation, inner, width, y);
}

}  // namespace kvlane
