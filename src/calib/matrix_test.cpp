// Products of plain matrices: every way to take the factors, parts of wider matrices, empty ones.
// SPDX-License-Identifier: Apache-2.0
#include "calib/matrix.h"

#include <gtest/gtest.h>

#include <utility>

namespace kvlane {
namespace {

// Small whole numbers, so that sums are exact in any order.
template <class Real>
Matrix<Real> numbers(Eigen::Index rows, Eigen::Index columns, int seed) {
  Matrix<Real> values(rows, columns);
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    values.data()[i] = static_cast<Real>((i * 7 + seed) % 11 - 5);
  }
  return values;
}

template <class Real>
void expect_products() {
  using enum Transpose;
  constexpr Eigen::Index kRows = 37, kInner = 21, kColumns = 50;
  for (const auto& [of_a, of_b] :
       {std::pair(kNo, kNo), std::pair(kNo, kYes), std::pair(kYes, kNo)}) {
    const Matrix<Real> a = numbers<Real>(kRows, kInner, 1), b = numbers<Real>(kInner, kColumns, 2);
    const Matrix<Real> before = numbers<Real>(kRows, kColumns + 3, 3);
    Matrix<Real> expected(kRows, kColumns);
    for (Eigen::Index i = 0; i < kRows; ++i) {
      for (Eigen::Index j = 0; j < kColumns; ++j) {
        Real sum = 0;
        for (Eigen::Index k = 0; k < kInner; ++k) sum += a(i, k) * b(k, j);
        expected(i, j) = sum;
      }
    }
    const Matrix<Real> taken_a = of_a == kYes ? Matrix<Real>(a.transpose()) : a;
    const Matrix<Real> taken_b = of_b == kYes ? Matrix<Real>(b.transpose()) : b;
    for (const bool add : {false, true}) {
      // Columns of a wider matrix, of which the others stay.
      Matrix<Real> c = before;
      multiply(of_a, taken_a, of_b, taken_b, c.middleCols(2, kColumns), add);
      Matrix<Real> all = before;
      all.middleCols(2, kColumns) = expected;
      if (add) all.middleCols(2, kColumns) += before.middleCols(2, kColumns);
      EXPECT_EQ(c, all);
    }
  }
}

TEST(Matrix, ProductsAreSumsOfProducts) {
  expect_products<float>();
  expect_products<double>();
}

template <class Real>
void expect_nothing_of_empty_factors() {
  const Matrix<Real> a(3, 0), b(0, 4);
  Matrix<Real> c = numbers<Real>(3, 4, 1);
  const Matrix<Real> before = c;
  multiply(Transpose::kNo, a, Transpose::kNo, b, c, true);
  EXPECT_EQ(c, before);
  multiply(Transpose::kNo, a, Transpose::kNo, b, c);
  EXPECT_TRUE(c.isZero(0));
  Matrix<Real> none(0, 4);
  multiply(Transpose::kNo, Matrix<Real>(0, 3), Transpose::kNo, numbers<Real>(3, 4, 1), none);
}

TEST(Matrix, EmptyFactorsGiveZeros) {
  expect_nothing_of_empty_factors<float>();
  expect_nothing_of_empty_factors<double>();
}

}  // namespace
}  // namespace kvlane
