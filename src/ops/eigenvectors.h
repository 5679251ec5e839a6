// Eigenvectors of symmetric matrices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

struct Eigenvectors {
  std::vector<double> vectors;  // [d][d]; columns are vectors, orthogonal and of length 1
  std::vector<double> values;   // [d], of these columns, descending
};

// Of a symmetric matrix [d][d], of which the entries [i][j] with i <= j count, as in Gram matrices
// (ops/gram.h). The same bits on any number of threads. kInternal where it does not converge, as
// with values that are not finite.
Result<Eigenvectors> eigenvectors_of(std::span<const double> matrix, std::size_t d);

}  // namespace kvlane
