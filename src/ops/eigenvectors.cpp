// Eigenvectors by Eigen.
// SPDX-License-Identifier: Apache-2.0
#include "ops/eigenvectors.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>

namespace kvlane {

Result<Eigenvectors> eigenvectors_of(std::span<const double> matrix, std::size_t d) {
  const auto n = static_cast<Eigen::Index>(d);
  // It reads the lower triangle by columns, which is ours.
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
      Eigen::Map<const Eigen::MatrixXd>(matrix.data(), n, n));
  if (solver.info() != Eigen::Success) {
    return internal_error("the eigenvectors of a Gram matrix did not converge");
  }
  Eigenvectors found;
  found.vectors.resize(d * d);
  for (Eigen::Index i = 0; i < n; ++i) {
    const Eigen::Index from = n - 1 - i;  // theirs ascend
    for (Eigen::Index row = 0; row < n; ++row) {
      found.vectors[row * n + i] = solver.eigenvectors()(row, from);
    }
    found.values.push_back(solver.eigenvalues()[from]);
  }
  return found;
}

}  // namespace kvlane
