// Four rows at a time share what is read of the matrix; lanes are columns. Operations: 2 d^2 a row;
// bytes: 4 d^2 for four rows, from a cache of the second level.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/rotation.h"

namespace kvlane {
namespace {

constexpr int kLanes = 16;

// kWide * 16 columns of kRows rows.
template <int kRows, int kWide>
inline void rotate_columns(const float* x, const float* rotation, int d, float* y) {
  __m512 sum[kRows][kWide];
  for (auto& row : sum) {
    for (__m512& lanes : row) lanes = _mm512_setzero_ps();
  }
  for (int i = 0; i < d; ++i) {
    __m512 from[kWide];
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) from[j] = _mm512_loadu_ps(rotation + i * d + j * kLanes);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const __m512 value = _mm512_set1_ps(x[row * d + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) sum[row][j] = _mm512_fmadd_ps(value, from[j], sum[row][j]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < kWide; ++j) _mm512_storeu_ps(y + row * d + j * kLanes, sum[row][j]);
  }
}

template <int kRows>
inline void rotate(const float* x, const float* rotation, int d, float* y) {
  int column = 0;
  for (; column + 4 * kLanes <= d; column += 4 * kLanes) {
    rotate_columns<kRows, 4>(x, rotation + column, d, y + column);
  }
  for (; column < d; column += kLanes) {
    rotate_columns<kRows, 1>(x, rotation + column, d, y + column);
  }
}

}  // namespace

void rotate_rows_avx512(const float* x, int rows, const float* rotation, int d, float* y) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) rotate<4>(x + row * d, rotation, d, y + row * d);
  for (; row < rows; ++row) rotate<1>(x + row * d, rotation, d, y + row * d);
}

}  // namespace kvlane
