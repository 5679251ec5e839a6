// Mixing channels, against the matrix from its definition.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace kvlane {
namespace {

constexpr int kRows = 3;

std::vector<float> random_rows(int head_dim) {
  std::mt19937 engine(static_cast<unsigned>(head_dim));
  std::normal_distribution<float> gauss;
  std::vector<float> rows(static_cast<std::size_t>(kRows) * head_dim);
  for (float& x : rows) x = gauss(engine);
  return rows;
}

// A value goes through log2(n) <= 8 sums and one product, each with an error of at most 2^-24 of
// what the magnitudes of a run add up to at that place.
double bound(const float* run, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::abs(run[i]);
  return 10 * 0x1p-24 * sum / std::sqrt(n);
}

TEST(Hadamard, IsTheMatrixOfEachRun) {
  for (const int head_dim : {1, 2, 16, 48, 80, 96, 128, 192, 256}) {
    const int n = head_dim & -head_dim;
    const std::vector<float> rows = random_rows(head_dim);
    std::vector<float> mixed = rows;
    mix_channels_scalar(mixed.data(), kRows, head_dim);
    for (std::size_t run = 0; run < rows.size(); run += n) {
      for (int i = 0; i < n; ++i) {
        double exact = 0;
        for (int j = 0; j < n; ++j) {
          const bool negative = std::popcount(static_cast<unsigned>(i & j)) % 2 == 1;
          exact += (negative ? -1.0 : 1.0) * double{rows[run + j]};
        }
        ASSERT_NEAR(mixed[run + i], exact / std::sqrt(n), bound(&rows[run], n))
            << head_dim << " channels, " << run + i;
      }
    }
  }
}

TEST(Hadamard, TwiceGivesRowsBack) {
  for (const int head_dim : {16, 48, 80, 128, 256}) {
    const int n = head_dim & -head_dim;
    const std::vector<float> rows = random_rows(head_dim);
    std::vector<float> mixed = rows;
    mix_channels_scalar(mixed.data(), kRows, head_dim);
    const std::vector<float> once = mixed;
    mix_channels_scalar(mixed.data(), kRows, head_dim);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t run = i / n * n;
      // The first mixing's errors are mixed in turn: at most sqrt(n) of the largest.
      const double error = bound(&once[run], n) + std::sqrt(n) * bound(&rows[run], n);
      ASSERT_NEAR(mixed[i], rows[i], error) << head_dim << " channels, " << i;
    }
  }
}

TEST(Hadamard, MixesNothingBeyondTheRows) {
  std::vector<float> rows(2 * 16 + 1, 1.0F);
  mix_channels_scalar(rows.data(), 2, 16);
  EXPECT_EQ(rows[0], 4.0F);
  EXPECT_EQ(rows[16], 4.0F);
  EXPECT_EQ(rows[31], 0.0F);
  EXPECT_EQ(rows[32], 1.0F);
}

}  // namespace
}  // namespace kvlane
