// Rotated rows against double precision, in every tier and number of rows.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rotation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
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

// Each of `inner` products and sums rounds once: inner * 2^-24 of the sum of magnitudes bounds the
// error.
TEST_P(RotationTest, EqualsDoublePrecision) {
  const std::pair<int, int> shapes[] = {{16, 16},   {48, 48},  {64, 64},  {96, 96},  {128, 128},
                                        {256, 256}, {128, 16}, {64, 112}, {32, 128}, {5, 80}};
  for (const auto& [inner, width] : shapes) {
    const std::vector<float> rotation = numbers(std::size_t(inner) * width, 1);
    for (const int rows : {1, 2, 3, 4, 5, 9}) {
      const std::vector<float> x = numbers(std::size_t(rows) * inner, 2);
      std::vector<float> y(std::size_t(rows) * width + 1, 7.0F);
      rotation_kernel(GetParam())(x.data(), rows, rotation.data(), inner, width, y.data());
      EXPECT_EQ(y.back(), 7.0F);
      for (int row = 0; row < rows; ++row) {
        for (int j = 0; j < width; ++j) {
          double sum = 0;
          double magnitude = 0;
          for (int i = 0; i < inner; ++i) {
            const double term = double(x[row * inner + i]) * double(rotation[i * width + j]);
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(y[row * width + j], sum, magnitude * (inner + 1) * 0x1p-24)
              << inner << ' ' << width << ' ' << rows;
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
  rotation_kernel(GetParam())(x.data(), kRows, rotation.data(), kDim, kDim, together.data());
  for (int row = 0; row < kRows; ++row) {
    float alone[kDim];
    rotation_kernel(GetParam())(&x[row * kDim], 1, rotation.data(), kDim, kDim, alone);
    EXPECT_EQ(std::memcmp(alone, &together[row * kDim], sizeof(alone)), 0) << row;
  }
}

// Whatever lies between tokens stays as it is.
TEST_P(RotationTest, HeadsOfTokensTurnInPlace) {
  constexpr int kDim = 48;
  const std::vector<float> rotation = numbers(kDim * kDim, 5);
  const RotationKernel kernel = rotation_kernel(GetParam());
  for (const int heads : {1, 3, 4, 29}) {
    const std::size_t stride = std::size_t(heads) * kDim + 5;
    for (const int tokens : {1, 5, 8}) {
      const std::vector<float> x = numbers(tokens * stride, 6);
      std::vector<float> expected = x, turned = x;
      for (int token = 0; token < tokens; ++token) {
        kernel(&x[token * stride], heads, rotation.data(), kDim, kDim, &expected[token * stride]);
      }
      rotate_heads(kernel, rotation.data(), kDim, turned.data(), heads, tokens, stride);
      EXPECT_EQ(turned, expected) << heads << ' ' << tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, RotationTest, ::testing::ValuesIn(kAllIsas),
                         [](const auto& tier) { return std::string(isa_name(tier.param)); });

}  // namespace
}  // namespace kvlane
