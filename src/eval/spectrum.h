// Singular values of tall matrices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Of values [rows][columns], the largest first, `columns` of them: square roots of the eigenvalues
// of the columns' products with each other, in double precision. So those below 1e-8 of the largest
// are noise. columns >= 1 divides the number of values.
Result<std::vector<double>> singular_values(std::span<const float> values, int columns);

}  // namespace kvlane
