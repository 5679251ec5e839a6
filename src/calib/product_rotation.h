// The change of basis in which a product of two tall matrices needs the fewest columns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "calib/rotation.h"
#include "kvlane/status.h"

namespace kvlane {

// For X and Y from their Gram matrices (ops/gram.h). The first k columns of X matrix and Y dual
// make the product of rank k that is closest to X Y^T, for every k, and singular_values are those
// of X Y^T: the length of a column of X matrix times that of the same column of Y dual. Of all
// changes of basis this one has the smallest ||X matrix|| ||Y dual||, in Frobenius norms, which is
// what codes with a scale for all columns are off by; neither is longer than X and Y were.
//
// Axes along which X or Y is shorter than 2^-12 of its longest count as being that long, so that
// matrix dual^T = I holds to 2^-11 at worst when both are rounded to binary32; of matrices that
// have no such axes nothing changes. The same bits on any number of threads.
Result<Rotation> product_rotation(std::span<const double> x, std::span<const double> y,
                                  std::size_t d);

}  // namespace kvlane
