// Mixing channels in all tiers: against the matrix from its definition, and against each other.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace kvlane {
namespace {

constexpr int kRows = 3;

class Hadamard : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
  static void mix(float* rows, int count, int head_dim) {
    mix_kernel(GetParam())(rows, count, head_dim);
  }
};

INSTANTIATE_TEST_SUITE_P(Tiers, Hadamard, ::testing::ValuesIn(kAllIsas),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

std::vector<float> random_rows(int head_dim) {
  std::mt19937 engine(static_cast<unsigned>(head_dim));
  std::normal_distribution<float> gauss;
  std::vector<float> rows(static_cast<std::size_t>(kRows) * head_dim);
  for (float& x : rows) x = gauss(engine);
  return rows;
}

// A value goes through log2(n) <= 9 sums and one product, each with an error of at most 2^-24 of
// what the magnitudes of a run add up to at that place.
double bound(const float* run, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::abs(run[i]);
  return 11 * 0x1p-24 * sum / std::sqrt(n);
}

TEST_P(Hadamard, IsTheMatrixOfEachRun) {
  for (const int head_dim : {1, 2, 16, 48, 64, 80, 96, 128, 192, 256, 512}) {
    const int n = head_dim & -head_dim;
    const std::vector<float> rows = random_rows(head_dim);
    std::vector<float> mixed = rows;
    mix(mixed.data(), kRows, head_dim);
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

TEST_P(Hadamard, TwiceGivesRowsBack) {
  for (const int head_dim : {16, 48, 80, 128, 256}) {
    const int n = head_dim & -head_dim;
    const std::vector<float> rows = random_rows(head_dim);
    std::vector<float> mixed = rows;
    mix(mixed.data(), kRows, head_dim);
    const std::vector<float> once = mixed;
    mix(mixed.data(), kRows, head_dim);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t run = i / n * n;
      // The first mixing's errors are mixed in turn: at most sqrt(n) of the largest.
      const double error = bound(&once[run], n) + std::sqrt(n) * bound(&rows[run], n);
      ASSERT_NEAR(mixed[i], rows[i], error) << head_dim << " channels, " << i;
    }
  }
}

TEST_P(Hadamard, MixesNothingBeyondTheRows) {
  std::vector<float> rows(2 * 16 + 1, 1.0F);
  mix(rows.data(), 2, 16);
  EXPECT_EQ(rows[0], 4.0F);
  EXPECT_EQ(rows[16], 4.0F);
  EXPECT_EQ(rows[31], 0.0F);
  EXPECT_EQ(rows[32], 1.0F);
}

// Bits of floats, with one NaN for all.
std::uint32_t bits_of(float x) { return x == x ? std::bit_cast<std::uint32_t>(x) : 0x7fc00000U; }

TEST_P(Hadamard, HasTheBitsOfTheScalarCode) {
  std::mt19937 engine(13);
  for (const int head_dim : {1, 6, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 192, 256, 512}) {
    for (const bool any_bits : {false, true}) {
      constexpr int kCount = 5;
      // Not aligned, and with something behind.
      const std::size_t values = std::size_t{kCount} * head_dim;
      std::vector<float> judge(values + 2);
      for (float& x : judge) {
        const auto bits = static_cast<std::uint32_t>(engine());
        x = any_bits ? std::bit_cast<float>(bits)
                     : static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-20F;
      }
      std::vector<float> rows = judge;
      mix_channels_scalar(judge.data() + 1, kCount, head_dim);
      mix(rows.data() + 1, kCount, head_dim);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(bits_of(rows[i]), bits_of(judge[i])) << "head_dim " << head_dim << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvlane
