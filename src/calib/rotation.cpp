// Eigenvectors, their signs, and all heads of a model.
// SPDX-License-Identifier: Apache-2.0
#include "calib/rotation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calib/product_rotation.h"
#include "cpu/parallel.h"
#include "ops/eigenvectors.h"
#include "ops/gram.h"

namespace kvlane {
namespace {

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
  KVLANE_ASSIGN(Eigenvectors found, eigenvectors_of(gram, d));
  Rotation rotation{.matrix = std::move(found.vectors), .singular_values = {}};
  // Rounding may leave those of lower ranks a hair below zero.
  for (const double value : found.values) {
    rotation.singular_values.push_back(std::sqrt(std::max(0.0, value)));
  }
  turn_columns(rotation);
  return rotation;
}

void turn_columns(Rotation& rotation) {
  const std::size_t d = rotation.singular_values.size();
  for (std::size_t column = 0; column < d; ++column) {
    double largest = 0;
    for (std::size_t at = column; at < d * d; at += d) {
      if (std::abs(rotation.matrix[at]) > std::abs(largest)) largest = rotation.matrix[at];
    }
    if (largest >= 0) continue;
    for (std::vector<double>* const matrix : {&rotation.matrix, &rotation.dual}) {
      for (std::size_t at = column; at < matrix->size(); at += d) (*matrix)[at] = -(*matrix)[at];
    }
  }
}

std::vector<double> stacked_gram(std::span<const double> a, std::span<const double> b,
                                 std::size_t d, const RotationOptions& options) {
  const double squares_a = squares_of(a, d);
  const double squares_b = squares_of(b, d);
  double scale = 1;  // of the squares of b, and one over that of a
  if (options.balance && squares_a > 0 && squares_b > 0) scale = std::sqrt(squares_a / squares_b);
  std::vector<double> sum(a.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] / scale + b[i] * scale;
  return sum;
}

Result<ZackRotations> zack_rotations(const KvGrams& grams, std::span<const double> outputs,
                                     const RotationOptions& options) {
  const auto d = static_cast<std::size_t>(grams.head_dim);
  const auto find = [&](std::span<const double> x, std::span<const double> y) {
    return options.kind == RotationKind::kProduct ? product_rotation(x, y, d)
                                                  : rotation_of(stacked_gram(x, y, d, options), d);
  };
  ZackRotations rotations;
  KVLANE_TRY(find_all(grams.heads(), rotations.qk, [&](std::size_t head) {
    return find(grams.of(GramPart::kK, head), grams.of(GramPart::kQ, head));
  }));
  KVLANE_TRY(find_all(grams.heads(), rotations.vw, [&](std::size_t head) {
    return find(grams.of(GramPart::kV, head), outputs.subspan(head * d * d, d * d));
  }));
  return rotations;
}

}  // namespace kvlane
