// Bases of products against what the product itself loses, and against rotations of stacks.
// SPDX-License-Identifier: Apache-2.0
#include "calib/product_rotation.h"

#include <gtest/gtest.h>

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_paths.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "calib/calibrate_zack.h"
#include "calib/fold.h"
#include "calib/text_tokens.h"
#include "model/model.h"

namespace kvlane {
namespace {

using DoubleMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Eigen::Index kDims = 24;

// Columns of very different sizes, mixed with each other.
DoubleMatrix random_matrix(std::uint64_t seed, Eigen::Index rows, double fall = 0.9) {
  const auto die = [&](std::uint32_t stream, Eigen::Index i) {
    return philox4x32(seed, {static_cast<std::uint32_t>(i), stream, 0, 0})[0] * 0x1p-31 - 1;
  };
  DoubleMatrix values(rows, kDims);
  DoubleMatrix mix(kDims, kDims);
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    values.data()[i] = die(0, i) * std::pow(fall, static_cast<double>(i % kDims));
  }
  for (Eigen::Index i = 0; i < mix.size(); ++i) mix.data()[i] = die(1, i);
  return values * mix;
}

std::vector<double> gram_of(const DoubleMatrix& tall) {
  std::vector<double> gram(static_cast<std::size_t>(tall.cols() * tall.cols()));
  Eigen::Map<DoubleMatrix>(gram.data(), tall.cols(), tall.cols()) = tall.transpose() * tall;
  return gram;
}

DoubleMatrix matrix_of(std::span<const double> values) {
  const auto d = static_cast<Eigen::Index>(std::sqrt(static_cast<double>(values.size())));
  return Eigen::Map<const DoubleMatrix>(values.data(), d, d);
}

Rotation product_of(const DoubleMatrix& x, const DoubleMatrix& y) {
  return take(product_rotation(gram_of(x), gram_of(y), kDims));
}

// Of X Y^T, when `kept` columns stay.
double loss(const DoubleMatrix& x, const DoubleMatrix& y, const Rotation& rotation,
            Eigen::Index kept) {
  const DoubleMatrix left = x * matrix_of(rotation.matrix).leftCols(kept);
  const DoubleMatrix right = y * matrix_of(rotation.for_second()).leftCols(kept);
  return (x * y.transpose() - left * right.transpose()).norm();
}

// A tall matrix of this Gram matrix, of which the entries [i][j] with i <= j are there.
DoubleMatrix of_gram(std::span<const double> gram) {
  const DoubleMatrix upper = matrix_of(gram);
  const Eigen::LLT<DoubleMatrix> root(upper.transpose());
  EXPECT_EQ(root.info(), Eigen::Success);
  return root.matrixU();
}

// The change of basis is undone by the other one when both are in binary32, as formats have them.
double off_identity(const Rotation& rotation) {
  const DoubleMatrix matrix = matrix_of(rotation.matrix).cast<float>().cast<double>();
  const DoubleMatrix dual = matrix_of(rotation.for_second()).cast<float>().cast<double>();
  const Eigen::Index d = matrix.rows();
  return (matrix * dual.transpose() - DoubleMatrix::Identity(d, d)).cwiseAbs().maxCoeff();
}

TEST(ProductRotation, LosesOfTheProductWhatItsSingularValuesSay) {
  const DoubleMatrix x = random_matrix(1, 300);
  const DoubleMatrix y = random_matrix(2, 100);
  const Rotation rotation = product_of(x, y);
  const double size = (x * y.transpose()).norm();
  EXPECT_TRUE(std::ranges::is_sorted(rotation.singular_values, std::greater<>()));
  double squares = 0;
  for (Eigen::Index kept = kDims; kept >= 0; --kept) {
    if (kept < kDims) squares += std::pow(rotation.singular_values[kept], 2);
    EXPECT_NEAR(loss(x, y, rotation, kept), std::sqrt(squares), 1e-12 * size) << kept;
  }
  EXPECT_LT(off_identity(rotation), 0x1p-16);
}

TEST(ProductRotation, LosesNoMoreThanTheRotationOfAStack) {
  for (std::uint64_t seed = 0; seed < (kSanitized ? 5 : 20); ++seed) {
    const DoubleMatrix x = random_matrix(2 * seed, 200);
    const DoubleMatrix y = 30 * random_matrix(2 * seed + 1, 60, 0.85);
    const Rotation product = product_of(x, y);
    const Rotation stacked =
        take(rotation_of(stacked_gram(gram_of(x), gram_of(y), kDims, {.balance = true}), kDims));
    const double size = (x * y.transpose()).norm();
    for (Eigen::Index kept = 0; kept <= kDims; ++kept) {
      EXPECT_LE(loss(x, y, product, kept), loss(x, y, stacked, kept) + 1e-12 * size) << kept;
    }
  }
}

TEST(ProductRotation, ColumnsOfBothAreOrthogonalAndAsLongAsEachOther) {
  const DoubleMatrix x = random_matrix(3, 300);
  const DoubleMatrix y = random_matrix(4, 100);
  const Rotation rotation = product_of(x, y);
  const DoubleMatrix matrix = matrix_of(rotation.matrix);
  const DoubleMatrix left = x * matrix;
  const DoubleMatrix right = y * matrix_of(rotation.dual);
  EXPECT_NEAR(left.norm(), x.norm(), 1e-12 * x.norm());
  EXPECT_LE(right.norm(), y.norm());
  const double ratio = left.norm() / right.norm();
  const DoubleMatrix of_left = left.transpose() * left;
  const DoubleMatrix of_right = ratio * ratio * (right.transpose() * right);
  const double size = of_left.norm();
  EXPECT_LT((of_left - of_right).norm(), 1e-10 * size);
  EXPECT_LT((of_left - DoubleMatrix(of_left.diagonal().asDiagonal())).norm(), 1e-10 * size);
  EXPECT_EQ(matrix.colwise().maxCoeff(), matrix.cwiseAbs().colwise().maxCoeff());
}

// Heads that are dead, or have dead channels; and fewer rows than channels.
TEST(ProductRotation, MissingRanksStayAChangeOfBasis) {
  const DoubleMatrix full = random_matrix(5, 200);
  DoubleMatrix dead_channels = random_matrix(6, 200);
  dead_channels.leftCols(10).setZero();
  const DoubleMatrix few = random_matrix(7, 5);
  const DoubleMatrix zero = DoubleMatrix::Zero(1, kDims);
  for (const DoubleMatrix& x : {full, dead_channels, few, zero}) {
    for (const DoubleMatrix& y : {full, dead_channels, few, zero}) {
      const Rotation rotation = product_of(x, y);
      EXPECT_LT(off_identity(rotation), 0x1p-11);
      const DoubleMatrix product = x * y.transpose();
      EXPECT_LE(loss(x, y, rotation, kDims), 1e-9 * x.norm() * y.norm());
      EXPECT_TRUE(std::ranges::is_sorted(rotation.singular_values, std::greater<>()));
      // What is beyond the rank is nothing, and nothing is lost with it.
      const Eigen::Index rank = std::min({x.rows(), y.rows(), kDims});
      if (rank == kDims || product.norm() == 0) continue;
      EXPECT_LE(loss(x, y, rotation, rank), 0x1p-11 * x.norm() * y.norm());
    }
  }
  EXPECT_EQ(product_of(zero, full).singular_values, std::vector<double>(kDims));
}

TEST(ProductRotation, LosesNoMoreThanTheRotationOfAStackOnAModel) {
  const std::string source = kSourceDir;
  const std::string directory = source + "/models/kvlane-tiny-gqa";
  const auto model = Model::load(directory, {.isa = best_isa()});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto tokens = read_text_tokens(directory, source + "/README.md", 1024);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  const auto sums = sum_for_zack(**model, *tokens, {});
  ASSERT_TRUE(sums.ok()) << sums.status().message();
  const auto checkpoint = Checkpoint::open(directory);
  ASSERT_TRUE(checkpoint.ok());
  const KvGrams& grams = sums->grams;
  const std::vector<double> outputs = output_grams(*checkpoint);
  const auto stacked = zack_rotations(grams, outputs, {});
  const auto product = zack_rotations(grams, outputs, {.kind = RotationKind::kProduct});
  ASSERT_TRUE(stacked.ok() && product.ok());
  const auto compare = [&](std::span<const double> gram_x, std::span<const double> gram_y,
                           const Rotation& ours, const Rotation& theirs) {
    const DoubleMatrix x = of_gram(gram_x);
    const DoubleMatrix y = of_gram(gram_y);
    const double size = (x * y.transpose()).norm();
    for (Eigen::Index kept = 0; kept <= x.cols(); kept += 4) {
      EXPECT_LE(loss(x, y, ours, kept), loss(x, y, theirs, kept) + 1e-9 * size) << kept;
    }
    EXPECT_LT(off_identity(ours), 0x1p-16);
    const Eigen::Index half = x.cols() / 2;
    EXPECT_LT(loss(x, y, ours, half), loss(x, y, theirs, half));
  };
  for (std::size_t head = 0; head < grams.heads(); ++head) {
    SCOPED_TRACE(head);
    compare(grams.of(GramPart::kK, head), grams.of(GramPart::kQ, head), product->qk[head],
            stacked->qk[head]);
    compare(grams.of(GramPart::kV, head),
            std::span(outputs).subspan(head * grams.matrix(), grams.matrix()), product->vw[head],
            stacked->vw[head]);
  }
}

}  // namespace
}  // namespace kvlane
