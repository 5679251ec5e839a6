// Symmetric updates by Eigen.
// SPDX-License-Identifier: Apache-2.0
#include "ops/gram.h"

#include <Eigen/Core>

namespace kvlane {

GramSum::GramSum(std::size_t d, double* gram) : d_(d), gram_(gram), gathered_(kRows * d) {}

void GramSum::flush() {
  const auto d = static_cast<Eigen::Index>(d_);
  // Eigen counts by column: rows are columns, and the lower triangle is our [i][j] with i <= j.
  const Eigen::Map<const Eigen::MatrixXd> rows(gathered_.data(), d,
                                               static_cast<Eigen::Index>(rows_));
  Eigen::Map<Eigen::MatrixXd> gram(gram_, d, d);
  gram.selfadjointView<Eigen::Lower>().rankUpdate(rows);
  rows_ = 0;
}

double squares_of(std::span<const double> gram, std::size_t d) {
  double sum = 0;
  for (std::size_t i = 0; i < d; ++i) sum += gram[i * d + i];
  return sum;
}

}  // namespace kvlane
