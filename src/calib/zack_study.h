// What ZACK's paper studies of a model: spectra, how heads differ, and how much text rotations
// need.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "calib/calibrate_zack.h"
#include "calib/rotation.h"
#include "kvlane/status.h"

namespace kvlane {

// Of K alone, V alone, and the two pairs.
enum class Stack { kK, kV, kQk, kVw };
inline constexpr int kStacks = 4;

// How the largest singular value differs between heads.
struct HeadSpread {
  double ratio = 1;      // largest over smallest head; 0 where the smallest is 0
  double variation = 0;  // standard deviation over mean
};

struct LayerStudy {
  // Singular values over the head's largest, mean over heads, [head_dim].
  std::array<std::vector<double>, kStacks> spectra;
  std::array<HeadSpread, kStacks> spreads;
};

// How far two sets of rotations of one pair are apart, over heads.
struct RotationDistance {
  // Of the subspaces of the first head_dim / 2 columns: ||A A^T - B B^T||_F / sqrt(head_dim), from
  // 0 (the same) to 1 (orthogonal), whatever the columns' signs and order. Where a rotation has a
  // dual, its columns take the place of A^T or B^T, and 1 is no bound.
  double subspace = 0;
  double subspace_worst = 0;
  double element = 0;    // mean |A - B| of the matrices' entries
  double magnitude = 0;  // mean |A|
};

struct PairDistance {
  std::uint64_t tokens = 0;  // of the rotations that are compared
  RotationDistance qk;
  RotationDistance vw;
};

struct ZackStudy {
  std::vector<LayerStudy> layers;
  std::array<HeadSpread, kStacks> spreads;  // over the heads of all layers
  std::vector<PairDistance> snapshots;      // from those of the whole text
};

// rotations: of sums.grams and outputs, as zack_rotations() gives them.
Result<ZackStudy> study_zack(const ZackSums& sums, std::span<const double> outputs,
                             const ZackRotations& rotations, const RotationOptions& options);

// From `a`, which comes from other text and so many tokens of it, to `b`, of the same model.
PairDistance pair_distance(const ZackRotations& a, const ZackRotations& b, std::uint64_t tokens);

}  // namespace kvlane
