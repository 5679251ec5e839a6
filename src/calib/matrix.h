// Matrices in row order and their products, on the calling thread: whoever shares work out over
// threads does so by rows, so that no bit depends on how many threads there are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>

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

// Whether a factor is taken as it is, or transposed.
enum class Transpose { kNo, kYes };

// c = a b, or c += a b where `add`, of matrices one of which at most is transposed. Floats by
// oneDNN, doubles by Eigen.
void multiply(Transpose of_a, const ConstMatrixRef<float>& a, Transpose of_b,
              const ConstMatrixRef<float>& b, MatrixRef<float> c, bool add = false);
void multiply(Transpose of_a, const ConstMatrixRef<double>& a, Transpose of_b,
              const ConstMatrixRef<double>& b, MatrixRef<double> c, bool add = false);

}  // namespace kvlane
