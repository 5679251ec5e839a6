// Rotations of ZACK: the axes in which K and Q, or V and the output projection, are shortest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "calib/kv_grams.h"
#include "kvlane/status.h"

namespace kvlane {

// The right singular vectors and the singular values of a tall matrix.
struct Rotation {
  // [d][d], orthogonal; columns are singular vectors, that of the largest value first. Of each the
  // entry of largest magnitude, the first of several, is positive: so there is one such matrix,
  // unless values are equal.
  std::vector<double> matrix;
  std::vector<double> singular_values;  // [d], descending, not negative
};

// From the Gram matrix (calib/gram.h), by its eigenvectors. Singular values below 1e-8 of the
// largest are noise. The same bits on any number of threads.
Result<Rotation> rotation_of(std::span<const double> gram, std::size_t d);

// One matrix on top of another: [A; B].
struct StackOptions {
  // Scale one matrix by c and the other by 1/c, so that neither outweighs the other; the product of
  // the one with the transposed other is the same. A matrix of zeros leaves both as they are.
  bool balance = false;
};

// The Gram matrix of two stacked matrices from those of each.
std::vector<double> stacked_gram(std::span<const double> a, std::span<const double> b,
                                 std::size_t d, const StackOptions& options);

// One a layer and KV head, at layer * kv_heads + KV head.
struct ZackRotations {
  std::vector<Rotation> qk;  // of K on top of the queries of its group
  std::vector<Rotation> vw;  // of V on top of the transposed slices of the output projection
};

// outputs: Gram matrices of the slices (calib/fold.h), as those of `grams`.
Result<ZackRotations> zack_rotations(const KvGrams& grams, std::span<const double> outputs,
                                     const StackOptions& options);

}  // namespace kvlane
