// Means over heads.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_study.h"

#include <algorithm>
#include <cmath>

#include "calib/matrix.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

// What is left of rows in the first k columns, in the basis that they came in.
Matrix<double> projection_of(const Rotation& rotation, std::int64_t d, std::int64_t k) {
  return matrix_of(rotation.matrix, d).leftCols(k) *
         matrix_of(rotation.for_second(), d).leftCols(k).transpose();
}

// Singular values of each head, [heads] of [head_dim], of each stack.
using Spectra = std::array<std::vector<std::vector<double>>, kStacks>;

Result<Spectra> spectra_of(const KvGrams& grams, const ZackRotations& rotations) {
  Spectra spectra;
  for (auto& heads : spectra) heads.resize(grams.heads());
  std::vector<Status> found(grams.heads());
  parallel_for(static_cast<std::int64_t>(grams.heads()), [&](std::int64_t head) {
    const auto alone = [&](Stack stack, GramPart part) {
      auto rotation = rotation_of(grams.of(part, head), static_cast<std::size_t>(grams.head_dim));
      if (!rotation.ok()) found[head] = rotation.status();
      if (rotation.ok()) {
        spectra[static_cast<int>(stack)][head] = std::move(rotation->singular_values);
      }
    };
    alone(Stack::kK, GramPart::kK);
    alone(Stack::kV, GramPart::kV);
    spectra[static_cast<int>(Stack::kQk)][head] = rotations.qk[head].singular_values;
    spectra[static_cast<int>(Stack::kVw)][head] = rotations.vw[head].singular_values;
  });
  for (const Status& status : found) KVLANE_TRY(status);
  return spectra;
}

HeadSpread spread_of(std::span<const std::vector<double>> heads) {
  std::vector<double> largest;
  for (const auto& values : heads) largest.push_back(values.front());
  const auto count = static_cast<double>(largest.size());
  double mean = 0;
  for (const double value : largest) mean += value / count;
  double variance = 0;
  for (const double value : largest) variance += (value - mean) * (value - mean) / count;
  const auto [low, high] = std::ranges::minmax(largest);
  return {low > 0 ? high / low : 0, mean > 0 ? std::sqrt(variance) / mean : 0};
}

std::vector<double> mean_spectrum(std::span<const std::vector<double>> heads) {
  std::vector<double> mean(heads.front().size());
  for (const auto& values : heads) {
    if (values.front() == 0) continue;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += values[i] / values.front() / static_cast<double>(heads.size());
    }
  }
  return mean;
}

RotationDistance distance_of(std::span<const Rotation> a, std::span<const Rotation> b) {
  std::vector<RotationDistance> heads(a.size());
  parallel_for(static_cast<std::int64_t>(a.size()), [&](std::int64_t head) {
    const auto d = static_cast<Eigen::Index>(a[head].singular_values.size());
    const Eigen::Index k = d / 2;
    const auto first = matrix_of(a[head].matrix, d);
    const auto second = matrix_of(b[head].matrix, d);
    const Matrix<double> apart = projection_of(a[head], d, k) - projection_of(b[head], d, k);
    heads[head].subspace = apart.norm() / std::sqrt(2.0 * static_cast<double>(k));
    heads[head].element = (first - second).cwiseAbs().mean();
    heads[head].magnitude = first.cwiseAbs().mean();
  });
  RotationDistance mean;
  for (const RotationDistance& head : heads) {
    const auto count = static_cast<double>(heads.size());
    mean.subspace += head.subspace / count;
    mean.subspace_worst = std::max(mean.subspace_worst, head.subspace);
    mean.element += head.element / count;
    mean.magnitude += head.magnitude / count;
  }
  return mean;
}

}  // namespace

Result<ZackStudy> study_zack(const ZackSums& sums, std::span<const double> outputs,
                             const ZackRotations& rotations, const RotationOptions& options) {
  const KvGrams& grams = sums.grams;
  KVLANE_ASSIGN(const Spectra spectra, spectra_of(grams, rotations));
  ZackStudy study;
  for (int layer = 0; layer < grams.layers; ++layer) {
    LayerStudy& one = study.layers.emplace_back();
    for (int stack = 0; stack < kStacks; ++stack) {
      const auto heads =
          std::span(spectra[stack]).subspan(std::size_t(layer) * grams.kv_heads, grams.kv_heads);
      one.spectra[stack] = mean_spectrum(heads);
      one.spreads[stack] = spread_of(heads);
    }
  }
  for (int stack = 0; stack < kStacks; ++stack) study.spreads[stack] = spread_of(spectra[stack]);
  for (const KvGrams& snapshot : sums.snapshots) {
    KVLANE_ASSIGN(const ZackRotations early, zack_rotations(snapshot, outputs, options));
    study.snapshots.push_back(pair_distance(early, rotations, snapshot.tokens));
  }
  return study;
}

PairDistance pair_distance(const ZackRotations& a, const ZackRotations& b, std::uint64_t tokens) {
  return {tokens, distance_of(a.qk, b.qk), distance_of(a.vw, b.vw)};
}

}  // namespace kvlane
