// Eigenvectors by Eigen.
// SPDX-License-Identifier: Apache-2.0
#include "calib/rotation.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <string>

#include "calib/gram.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

// The factor of each column that makes its entry of largest magnitude positive.
double sign_of(const Eigen::Ref<const Eigen::VectorXd>& column) {
  Eigen::Index largest = 0;
  column.cwiseAbs().maxCoeff(&largest);
  return column[largest] < 0 ? -1 : 1;
}

// Every rotation, or what went wrong with the first that failed.
template <class Find>
Status find_all(std::size_t heads, std::vector<Rotation>& rotations, const Find& find) {
  rotations.resize(heads);
  std::vector<Status> found(heads);
  parallel_for(static_cast<std::int64_t>(heads), [&](std::int64_t head) {
    auto rotation = find(static_cast<std::size_t>(head));
    if (rotation.ok()) {
      rotations[head] = std::move(*rotation);
    } else {
      found[head] = rotation.status();
    }
  });
  const auto bad = std::ranges::find_if(found, [](const Status& status) { return !status.ok(); });
  return bad == found.end() ? Status() : *bad;
}

}  // namespace

Result<Rotation> rotation_of(std::span<const double> gram, std::size_t d) {
  const auto n = static_cast<Eigen::Index>(d);
  // It reads the lower triangle by columns, which is ours.
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
      Eigen::Map<const Eigen::MatrixXd>(gram.data(), n, n));
  if (solver.info() != Eigen::Success) {
    return internal_error("the eigenvectors of a Gram matrix did not converge");
  }
  Rotation rotation;
  rotation.matrix.resize(d * d);
  for (Eigen::Index i = 0; i < n; ++i) {
    const Eigen::Index from = n - 1 - i;  // theirs ascend
    const double sign = sign_of(solver.eigenvectors().col(from));
    for (Eigen::Index row = 0; row < n; ++row) {
      rotation.matrix[row * n + i] = sign * solver.eigenvectors()(row, from);
    }
    // Rounding may leave those of lower ranks a hair below zero.
    rotation.singular_values.push_back(std::sqrt(std::max(0.0, solver.eigenvalues()[from])));
  }
  return rotation;
}

std::vector<double> stacked_gram(std::span<const double> a, std::span<const double> b,
                                 std::size_t d, const StackOptions& options) {
  const double squares_a = squares_of(a, d);
  const double squares_b = squares_of(b, d);
  double scale = 1;  // of the squares of b, and one over that of a
  if (options.balance && squares_a > 0 && squares_b > 0) scale = std::sqrt(squares_a / squares_b);
  std::vector<double> sum(a.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] / scale + b[i] * scale;
  return sum;
}

Result<ZackRotations> zack_rotations(const KvGrams& grams, std::span<const double> outputs,
                                     const StackOptions& options) {
  const auto d = static_cast<std::size_t>(grams.head_dim);
  ZackRotations rotations;
  KVLANE_TRY(find_all(grams.heads(), rotations.qk, [&](std::size_t head) {
    return rotation_of(
        stacked_gram(grams.of(GramPart::kK, head), grams.of(GramPart::kQ, head), d, options), d);
  }));
  KVLANE_TRY(find_all(grams.heads(), rotations.vw, [&](std::size_t head) {
    return rotation_of(stacked_gram(grams.of(GramPart::kV, head),
                                    outputs.subspan(head * d * d, d * d), d, options),
                       d);
  }));
  return rotations;
}

}  // namespace kvlane
