// Rotations against a plain reckoning.
// SPDX-License-Identifier: Apache-2.0
#include "calib/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/random.h"
#include "ops/gram.h"

namespace kvlane {
namespace {

constexpr std::size_t kRotationRows = 300;  // more than are gathered at once
constexpr std::size_t kD = 24;

// [rows][kD], columns of very different sizes.
std::vector<double> random_rows(std::uint64_t seed, std::size_t rows = kRotationRows) {
  std::vector<double> values(rows * kD);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto die = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0];
    values[i] = (die * 0x1p-31 - 1) * std::pow(0.7, static_cast<double>(i % kD));
  }
  return values;
}

std::vector<double> gram_of(const std::vector<double>& rows) {
  std::vector<double> gram(kD * kD);
  GramSum sum(kD, gram.data());
  for (std::size_t row = 0; row < rows.size() / kD; ++row) {
    std::copy_n(rows.data() + row * kD, kD, sum.next());
  }
  sum.flush();
  return gram;
}

// ||A R_i|| of column i.
double length_along(const std::vector<double>& rows, const Rotation& rotation, std::size_t i) {
  double squares = 0;
  for (std::size_t row = 0; row < rows.size() / kD; ++row) {
    double product = 0;
    for (std::size_t j = 0; j < kD; ++j) {
      product += rows[row * kD + j] * rotation.matrix[j * kD + i];
    }
    squares += product * product;
  }
  return std::sqrt(squares);
}

double column_product(const Rotation& rotation, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t row = 0; row < kD; ++row) {
    sum += rotation.matrix[row * kD + a] * rotation.matrix[row * kD + b];
  }
  return sum;
}

TEST(Rotation, IsOrthogonalAndOrdersTheSingularValues) {
  const auto rows = random_rows(2);
  const auto rotation = rotation_of(gram_of(rows), kD);
  ASSERT_TRUE(rotation.ok()) << rotation.status().message();
  for (std::size_t i = 0; i < kD; ++i) {
    for (std::size_t j = 0; j < kD; ++j) {
      EXPECT_NEAR(column_product(*rotation, i, j), i == j ? 1 : 0, 1e-13);
    }
    EXPECT_NEAR(length_along(rows, *rotation, i), rotation->singular_values[i],
                1e-7 * rotation->singular_values[0]);
  }
  EXPECT_TRUE(std::ranges::is_sorted(rotation->singular_values, std::greater<>()));
  EXPECT_GT(rotation->singular_values.front(), 10 * rotation->singular_values.back());
}

TEST(Rotation, ColumnsHaveTheirLargestEntryPositive) {
  const auto rotation = rotation_of(gram_of(random_rows(3)), kD);
  ASSERT_TRUE(rotation.ok());
  for (std::size_t i = 0; i < kD; ++i) {
    double largest = 0;
    for (std::size_t row = 0; row < kD; ++row) {
      const double entry = rotation->matrix[row * kD + i];
      if (std::abs(entry) > std::abs(largest)) largest = entry;
    }
    EXPECT_GT(largest, 0) << i;
  }
}

TEST(Rotation, OfNothingIsARotation) {
  const auto rotation = rotation_of(std::vector<double>(kD * kD), kD);
  ASSERT_TRUE(rotation.ok());
  for (std::size_t i = 0; i < kD; ++i) {
    EXPECT_EQ(rotation->singular_values[i], 0);
    EXPECT_EQ(column_product(*rotation, i, i), 1);
  }
}

// The singular values that a matrix leaves when fewer columns are kept.
TEST(Rotation, KeepsMoreThanAnyOtherAxes) {
  const auto rows = random_rows(4);
  const auto rotation = rotation_of(gram_of(rows), kD);
  ASSERT_TRUE(rotation.ok());
  double kept = 0;
  double all = 0;
  double plain = 0;
  for (std::size_t i = 0; i < kD; ++i) {
    const double along = std::pow(length_along(rows, *rotation, i), 2);
    all += along;
    if (i < 8) kept += along;
  }
  for (std::size_t row = 0; row < kRotationRows; ++row) {
    for (std::size_t i = 0; i < 8; ++i) plain += std::pow(rows[row * kD + i], 2);
  }
  EXPECT_GT(kept, plain);
  EXPECT_NEAR(all, squares_of(gram_of(rows), kD), 1e-12 * all);
}

TEST(StackedGram, IsThatOfOneMatrixOnTopOfTheOther) {
  const auto a = random_rows(5);
  const auto b = random_rows(6, 100);
  auto both = a;
  both.insert(both.end(), b.begin(), b.end());
  const auto stacked = stacked_gram(gram_of(a), gram_of(b), kD, {});
  const auto expected = gram_of(both);
  for (std::size_t i = 0; i < kD * kD; ++i)
    EXPECT_NEAR(stacked[i], expected[i], 1e-12 * kRotationRows);
}

TEST(StackedGram, BalancedMatricesWeighAlike) {
  const auto a = random_rows(7);
  auto b = random_rows(8, 100);
  for (double& value : b) value *= 50;
  const double c = std::sqrt(std::sqrt(squares_of(gram_of(a), kD) / squares_of(gram_of(b), kD)));
  std::vector<double> both;
  for (const double value : a) both.push_back(value / c);
  for (const double value : b) both.push_back(value * c);
  const auto stacked = stacked_gram(gram_of(a), gram_of(b), kD, {.balance = true});
  const auto expected = gram_of(both);
  const double size = squares_of(expected, kD);
  for (std::size_t i = 0; i < kD * kD; ++i) EXPECT_NEAR(stacked[i], expected[i], 1e-13 * size);
  const std::vector<double> zero(kD * kD);
  EXPECT_EQ(stacked_gram(zero, gram_of(b), kD, {.balance = true}), gram_of(b));
}

}  // namespace
}  // namespace kvlane
