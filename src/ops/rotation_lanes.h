// Rotated rows with vectors of any width: V::kRows rows at a time share what is read of the matrix,
// lanes are columns. Operations: 2 inner width a row; bytes: 4 inner width for these rows, from a
// cache of the second level. For files of one instruction-set tier only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Templates are instantiated with types that only one file knows, so each has code of its own.
namespace kvlane::rotation_lanes {

// kWide vectors of columns of kRows rows.
template <class V, int kRows, int kWide>
static inline void rotate_columns(const float* x, const float* rotation, int inner, int width,
                                  float* y) {
  typename V::Floats sum[kRows][kWide];
  for (auto& row : sum) {
    for (auto& lanes : row) lanes = V::zero();
  }
  for (int i = 0; i < inner; ++i) {
    typename V::Floats from[kWide];
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) from[j] = V::load(rotation + i * width + j * V::kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto value = V::all(x[row * inner + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) sum[row][j] = V::multiply_add(value, from[j], sum[row][j]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < kWide; ++j) V::store(y + row * width + j * V::kLanes, sum[row][j]);
  }
}

template <class V, int kRows>
static inline void rotate(const float* x, const float* rotation, int inner, int width, float* y) {
  int column = 0;
  for (; column + 4 * V::kLanes <= width; column += 4 * V::kLanes) {
    rotate_columns<V, kRows, 4>(x, rotation + column, inner, width, y + column);
  }
  for (; column < width; column += V::kLanes) {
    rotate_columns<V, kRows, 1>(x, rotation + column, inner, width, y + column);
  }
}

// kRows at a time while there are so many, then half as many.
template <class V, int kRows = V::kRows>
static inline void rotate_rows(const float* x, int rows, const float* rotation, int inner,
                               int width, float* y) {
  int row = 0;
  for (; row + kRows <= rows; row += kRows) {
    rotate<V, kRows>(x + row * inner, rotation, inner, width, y + row * width);
  }
  if constexpr (kRows > 1) {
    rotate_rows<V, kRows / 2>(x + row * inner, rows - row, rotation, inner, width, y + row * width);
  }
}

}  // namespace kvlane::rotation_lanes
