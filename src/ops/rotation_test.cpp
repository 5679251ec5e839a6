// Rotated rows against double precision, in every tier and number of rows.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rotation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const PhiloxCounter random = philox4x32(seed, {static_cast<std::uint32_t>(i)});
    values[i] = static_cast<float>(2 * uniform_unit(random[0], random[1]) - 1);
  }
  return values;
}

class RotationTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

// Each of d products and sums rounds once: d * 2^-24 of the sum of magnitudes bounds the error.
TEST_P(RotationTest, EqualsDoublePrecision) {
  for (const int d : {16, 48, 64, 96, 128, 256}) {
    const std::vector<float> rotation = numbers(std::size_t(d) * d, 1);
    for (const int rows : {1, 2, 3, 4, 5, 9}) {
      const std::vector<float> x = numbers(std::size_t(rows) * d, 2);
      std::vector<float> y(x.size() + 1, 7.0F);
      rotation_kernel(GetParam())(x.data(), rows, rotation.data(), d, y.data());
      EXPECT_EQ(y.back(), 7.0F);
      for (int row = 0; row < rows; ++row) {
        for (int j = 0; j < d; ++j) {
          double sum = 0;
          double magnitude = 0;
          for (int i = 0; i < d; ++i) {
            const double term = double(x[row * d + i]) * double(rotation[i * d + j]);
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(y[row * d + j], sum, magnitude * (d + 1) * 0x1p-24) << d << ' ' << rows;
        }
      }
    }
  }
}

TEST_P(RotationTest, RowsHaveTheSameBitsInAnyCompany) {
  constexpr int kDim = 80;
  constexpr int kRows = 11;
  const std::vector<float> rotation = numbers(kDim * kDim, 3);
  const std::vector<float> x = numbers(kRows * kDim, 4);
  std::vector<float> together(x.size());
  rotation_kernel(GetParam())(x.data(), kRows, rotation.data(), kDim, together.data());
  for (int row = 0; row < kRows; ++row) {
    float alone[kDim];
    rotation_kernel(GetParam())(&x[row * kDim], 1, rotation.data(), kDim, alone);
    EXPECT_EQ(std::memcmp(alone, &together[row * kDim], sizeof(alone)), 0) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, RotationTest, ::testing::ValuesIn(kAllIsas),
                         [](const auto& tier) { return std::string(isa_name(tier.param)); });

}  // namespace
}  // namespace kvlane
