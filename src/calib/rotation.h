// Rotations of ZACK: axes of falling strength of K and Q, or of V and the output projection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calib/kv_grams.h"
#include "kvlane/status.h"

namespace kvlane {

// A change of basis of two matrices X and Y of d columns whose product X Y^T counts: X becomes
// X matrix, Y becomes Y dual, and the product stays, because matrix dual^T = I.
struct Rotation {
  // [d][d]; columns are axes, that of the largest value first. Of each the entry of largest
  // magnitude, the first of several, is positive: so there is one such matrix, unless values are
  // equal.
  std::vector<double> matrix;
  std::vector<double> singular_values;  // [d], descending, not negative
  // [d][d]; empty where it is `matrix` itself, which is orthogonal then.
  std::vector<double> dual = {};

  std::span<const double> for_second() const { return dual.empty() ? matrix : dual; }
};

// What axes are chosen by.
enum class RotationKind : std::uint8_t {
  kStacked,  // right singular vectors of X on top of Y, as in the paper
  kProduct,  // the singular value decomposition of X Y^T
};

struct RotationOptions {
  RotationKind kind = RotationKind::kStacked;
  // kStacked only: scale X by c and Y by 1/c, so that neither outweighs the other; X Y^T is the
  // same. A matrix of zeros leaves both as they are.
  bool balance = false;
};

// The right singular vectors of a tall matrix, orthogonal, from its Gram matrix (ops/gram.h), by
// its eigenvectors. Singular values below 1e-8 of the largest are noise. The same bits on any
// number of threads.
Result<Rotation> rotation_of(std::span<const double> gram, std::size_t d);

// The Gram matrix of two stacked matrices from those of each.
std::vector<double> stacked_gram(std::span<const double> a, std::span<const double> b,
                                 std::size_t d, const RotationOptions& options);

// Sees to the signs of columns.
void turn_columns(Rotation& rotation);

// One a layer and KV head, at layer * kv_heads + KV head.
struct ZackRotations {
  std::vector<Rotation> qk;  // of K, and of the queries of its group
  std::vector<Rotation> vw;  // of V, and of the transposed slices of the output projection
};

// outputs: Gram matrices of the slices (calib/fold.h), as those of `grams`.
Result<ZackRotations> zack_rotations(const KvGrams& grams, std::span<const double> outputs,
                                     const RotationOptions& options);

}  // namespace kvlane
