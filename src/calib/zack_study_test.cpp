// The figures of the study on matrices whose answer is known.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_study.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlane {
namespace {

// Columns are unit vectors: column i is that of axis axes[i], times sign.
Rotation axes_rotation(const std::vector<std::size_t>& axes, double sign = 1) {
  const std::size_t d = axes.size();
  Rotation rotation{std::vector<double>(d * d), std::vector<double>(d, 1)};
  for (std::size_t i = 0; i < d; ++i) rotation.matrix[axes[i] * d + i] = sign;
  return rotation;
}

TEST(PairDistance, OfSubspacesIgnoresOrderAndSigns) {
  const ZackRotations plain{{axes_rotation({0, 1, 2, 3})}, {axes_rotation({0, 1, 2, 3})}};
  const ZackRotations other{{axes_rotation({1, 0, 3, 2}, -1)}, {axes_rotation({2, 3, 0, 1})}};
  const PairDistance distance = pair_distance(other, plain, 7);
  EXPECT_EQ(distance.tokens, 7U);
  EXPECT_EQ(distance.qk.subspace, 0);
  EXPECT_EQ(distance.qk.element, 0.5);  // eight of sixteen entries are 1 away
  EXPECT_EQ(distance.qk.magnitude, 0.25);
  EXPECT_DOUBLE_EQ(distance.vw.subspace, 1);
  EXPECT_EQ(pair_distance(plain, plain, 7).vw.element, 0);
}

TEST(PairDistance, IsTheMeanOverHeadsAndTheWorst) {
  const Rotation same = axes_rotation({0, 1, 2, 3});
  const Rotation half = axes_rotation({0, 2, 1, 3});
  const PairDistance distance =
      pair_distance({{same, half}, {same, same}}, {{same, same}, {same, same}}, 1);
  // One of two axes: ||diag(0, 1, -1, 0)|| / 2.
  EXPECT_DOUBLE_EQ(distance.qk.subspace_worst, std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(distance.qk.subspace, std::sqrt(0.5) / 2);
  EXPECT_EQ(distance.vw.subspace_worst, 0);
}

TEST(ZackStudy, TellsSpectraAndHowHeadsDiffer) {
  // Two layers of two heads; K has singular values (4, 2) times 1, 2, 3, 4 and the others nothing.
  ZackSums sums{.grams = KvGrams::zero({2, 2, 2, ElementType::kBf16}), .snapshots = {}};
  auto& k = sums.grams.sums[static_cast<int>(GramPart::kK)];
  for (std::size_t head = 0; head < 4; ++head) {
    const auto scale = static_cast<double>((head + 1) * (head + 1));
    k[head * 4] = 4 * scale;
    k[head * 4 + 3] = 16 * scale;
  }
  sums.snapshots.push_back(sums.grams);
  sums.snapshots[0].tokens = 1024;
  const std::vector<double> outputs(16);
  const auto rotations = zack_rotations(sums.grams, outputs, {});
  ASSERT_TRUE(rotations.ok());
  EXPECT_EQ(rotations->qk[3].matrix, (std::vector<double>{0, 1, 1, 0}));
  const auto study = study_zack(sums, outputs, *rotations, {});
  ASSERT_TRUE(study.ok()) << study.status().message();
  ASSERT_EQ(study->layers.size(), 2U);
  const auto at = [](Stack stack) { return static_cast<std::size_t>(stack); };
  for (const LayerStudy& layer : study->layers) {
    EXPECT_EQ(layer.spectra[at(Stack::kK)], (std::vector<double>{1, 0.5}));
    EXPECT_EQ(layer.spectra[at(Stack::kQk)], (std::vector<double>{1, 0.5}));
    EXPECT_EQ(layer.spectra[at(Stack::kV)], (std::vector<double>{0, 0}));
  }
  EXPECT_DOUBLE_EQ(study->layers[0].spreads[at(Stack::kK)].ratio, 2);
  EXPECT_DOUBLE_EQ(study->layers[1].spreads[at(Stack::kK)].variation, 0.5 / 3.5);
  EXPECT_DOUBLE_EQ(study->spreads[at(Stack::kQk)].ratio, 4);
  EXPECT_DOUBLE_EQ(study->spreads[at(Stack::kQk)].variation, std::sqrt(1.25) / 2.5);
  EXPECT_EQ(study->spreads[at(Stack::kV)].ratio, 0);
  ASSERT_EQ(study->snapshots.size(), 1U);
  EXPECT_EQ(study->snapshots[0].tokens, 1024U);
  EXPECT_EQ(study->snapshots[0].qk.subspace, 0);
}

}  // namespace
}  // namespace kvlane
