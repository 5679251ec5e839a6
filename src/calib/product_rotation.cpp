// With X = P F and Y = O G, where P and O have orthogonal columns, X Y^T = P (F G^T) O^T. The
// singular value decomposition F G^T = U S V^T then gives matrix = F^-1 U S^(1/2) and
// dual = G^-1 V S^(1/2): K' and Q' of SPEC 2.1. F and G come from eigenvectors of Gram matrices.
// SPDX-License-Identifier: Apache-2.0
#include "calib/product_rotation.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlane {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kShortest = 0x1p-12;  // of the longest axis

// F and F^-1.
struct Factor {
  MatrixXd factor;
  MatrixXd inverse;
};

Eigen::Map<const MatrixXd> gram_of(std::span<const double> gram, Index n) {
  return {gram.data(), n, n};  // of which the lower triangle, by columns, is ours
}

Result<Factor> factor_of(std::span<const double> gram, Index n) {
  const Eigen::SelfAdjointEigenSolver<MatrixXd> solver(gram_of(gram, n));
  if (solver.info() != Eigen::Success) {
    return internal_error("the eigenvectors of a Gram matrix did not converge");
  }
  const double largest = solver.eigenvalues()[n - 1];
  if (largest <= 0) return Factor{MatrixXd::Identity(n, n), MatrixXd::Identity(n, n)};
  const VectorXd lengths =
      solver.eigenvalues().cwiseMax(kShortest * kShortest * largest).cwiseSqrt();
  return Factor{lengths.asDiagonal() * solver.eigenvectors().transpose(),
                solver.eigenvectors() * lengths.cwiseInverse().asDiagonal()};
}

// Of each column of the matrix times `axes`.
VectorXd lengths_along(std::span<const double> gram, const MatrixXd& axes) {
  const MatrixXd product = gram_of(gram, axes.rows()).selfadjointView<Eigen::Lower>() * axes;
  return axes.cwiseProduct(product).colwise().sum().cwiseMax(0).cwiseSqrt();
}

}  // namespace

Result<Rotation> product_rotation(std::span<const double> x, std::span<const double> y,
                                  std::size_t d) {
  const auto n = static_cast<Index>(d);
  KVLANE_ASSIGN(const Factor f, factor_of(x, n));
  KVLANE_ASSIGN(const Factor g, factor_of(y, n));
  const Eigen::JacobiSVD<MatrixXd> svd(f.factor * g.factor.transpose(),
                                       Eigen::ComputeFullU | Eigen::ComputeFullV);
  const VectorXd roots = svd.singularValues().cwiseSqrt();
  const MatrixXd matrix = f.inverse * svd.matrixU() * roots.asDiagonal();
  const MatrixXd dual = g.inverse * svd.matrixV() * roots.asDiagonal();

  // Of the matrices as they are: axes that count as longer may belong further down.
  const VectorXd of_x = lengths_along(x, matrix);
  const VectorXd values = of_x.cwiseProduct(lengths_along(y, dual));
  std::vector<Index> order(d);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](Index a, Index b) { return values[a] > values[b]; });
  // X stays as long as it was.
  const double length = gram_of(x, n).diagonal().sum();
  const double scale = length > 0 ? std::sqrt(length / of_x.squaredNorm()) : 1;

  Rotation rotation;
  rotation.matrix.resize(d * d);
  rotation.dual.resize(d * d);
  for (Index i = 0; i < n; ++i) {
    rotation.singular_values.push_back(values[order[i]]);
    for (Index row = 0; row < n; ++row) {
      rotation.matrix[row * n + i] = matrix(row, order[i]) * scale;
      rotation.dual[row * n + i] = dual(row, order[i]) / scale;
    }
  }
  turn_columns(rotation);
  return rotation;
}

}  // namespace kvlane
