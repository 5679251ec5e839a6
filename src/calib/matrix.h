// Matrices in row order, and their products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <span>

#include "cpu/parallel.h"

namespace kvlane {

template <class Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using RowVector = Eigen::Matrix<Real, 1, Eigen::Dynamic>;
// Matrices, or columns of wider ones.
template <class Real>
using ConstMatrixRef = Eigen::Ref<const Matrix<Real>, 0, Eigen::OuterStride<>>;
template <class Real>
using MatrixRef = Eigen::Ref<Matrix<Real>, 0, Eigen::OuterStride<>>;

// Numbers that lie elsewhere, as a matrix of d rows and columns.
inline Eigen::Map<const Matrix<double>> matrix_of(std::span<const double> values, std::int64_t d) {
  return {values.data(), d, d};
}

// Whether a factor is taken as it is, or transposed.
enum class Transpose { kNo, kYes };

// c = a b, or c += a b where `add`, of matrices one of which at most is transposed. Floats by
// oneDNN, on as many threads as a loop would have here: Eigen, which multiplies doubles, knows the
// vectors of plain x86-64 only.
void multiply(Transpose of_a, const ConstMatrixRef<float>& a, Transpose of_b,
              const ConstMatrixRef<float>& b, MatrixRef<float> c, bool add = false);
void multiply(Transpose of_a, const ConstMatrixRef<double>& a, Transpose of_b,
              const ConstMatrixRef<double>& b, MatrixRef<double> c, bool add = false);

// Calls body(i) for every i in [0, count) side by side, and its products on one thread each: bits
// do not depend on how many threads there are.
template <class Body>
void for_each_alone(std::int64_t count, const Body& body) {
  parallel_for(count, [&](std::int64_t i) {
    const ParallelScope alone(1);
    body(i);
  });
}

}  // namespace kvlane
