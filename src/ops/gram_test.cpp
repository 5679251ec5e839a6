// Gram matrices and their eigenvectors against a plain reckoning.
// SPDX-License-Identifier: Apache-2.0
#include "ops/gram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "ops/eigenvectors.h"

namespace kvlane {
namespace {

constexpr std::size_t kGramRows = 300;  // more than are gathered at once
constexpr std::size_t kD = 24;

// [kGramRows][kD], columns of very different sizes.
std::vector<double> random_rows() {
  std::vector<double> values(kGramRows * kD);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto die = philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0})[0];
    values[i] = (die * 0x1p-31 - 1) * std::pow(0.7, static_cast<double>(i % kD));
  }
  return values;
}

std::vector<double> gram_of(const std::vector<double>& rows) {
  std::vector<double> gram(kD * kD);
  GramSum sum(kD, gram.data());
  for (std::size_t row = 0; row < kGramRows; ++row) {
    std::copy_n(rows.data() + row * kD, kD, sum.next());
  }
  sum.flush();
  return gram;
}

TEST(GramSum, AddsProductsOfColumns) {
  const auto rows = random_rows();
  const auto gram = gram_of(rows);
  double squares = 0;
  for (std::size_t i = 0; i < kD; ++i) {
    for (std::size_t j = 0; j < kD; ++j) {
      double expected = 0;
      double size = 0;
      for (std::size_t row = 0; row < kGramRows; ++row) {
        expected += rows[row * kD + i] * rows[row * kD + j];
        size += std::abs(rows[row * kD + i] * rows[row * kD + j]);
      }
      // Each sum of n terms is within n rounding errors of their sizes; nothing below the diagonal.
      EXPECT_NEAR(gram[i * kD + j], i <= j ? expected : 0, kGramRows * 0x1p-52 * size)
          << i << " " << j;
      if (i == j) squares += expected;
    }
  }
  EXPECT_NEAR(squares_of(gram, kD), squares, 1e-12 * squares);
}

TEST(Eigenvectors, AreTurnedIntoMultiplesOfThemselves) {
  const auto gram = gram_of(random_rows());
  const auto found = eigenvectors_of(gram, kD);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_TRUE(std::is_sorted(found->values.rbegin(), found->values.rend()));
  const auto entry = [&](std::size_t i, std::size_t j) {
    return gram[std::min(i, j) * kD + std::max(i, j)];
  };
  for (std::size_t column = 0; column < kD; ++column) {
    double length = 0;
    for (std::size_t i = 0; i < kD; ++i) {
      double turned = 0;
      for (std::size_t j = 0; j < kD; ++j) turned += entry(i, j) * found->vectors[j * kD + column];
      const double own = found->vectors[i * kD + column];
      EXPECT_NEAR(turned, found->values[column] * own, 1e-12 * found->values[0]) << column;
      length += own * own;
    }
    EXPECT_NEAR(length, 1, 1e-12) << column;
  }
}

TEST(Eigenvectors, RefuseWhatIsNotFinite) {
  std::vector<double> gram(kD * kD);
  gram[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(eigenvectors_of(gram, kD).status().code(), Code::kInternal);
}

}  // namespace
}  // namespace kvlane
