// Eigenvalues by Eigen.
// SPDX-License-Identifier: Apache-2.0
#include "eval/spectrum.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

namespace kvlane {

Result<std::vector<double>> singular_values(std::span<const float> values, int columns) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto rows = static_cast<Eigen::Index>(values.size()) / columns;
  const Eigen::MatrixXd wide = Eigen::Map<const Rows>(values.data(), rows, columns).cast<double>();
  const Eigen::MatrixXd products = wide.transpose() * wide;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(products, Eigen::EigenvaluesOnly);
  if (solver.info() != Eigen::Success) {
    return internal_error("the eigenvalues of a matrix of K or V did not converge");
  }
  std::vector<double> found;
  for (Eigen::Index i = columns - 1; i >= 0; --i) {
    // Rounding may leave those of lower ranks a hair below zero.
    found.push_back(std::sqrt(std::max(0.0, solver.eigenvalues()[i])));
  }
  return found;
}

}  // namespace kvlane
