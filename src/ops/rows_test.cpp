// Row operations against double precision.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/rope_table.h"

namespace kvlane {
namespace {

std::vector<float> wave(int n, double step) {
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(3 * std::sin(step * i + 0.5));
  return values;
}

TEST(Rows, RmsNormEqualsItsDefinition) {
  for (const int n : {1, 15, 16, 17, 256, 1000}) {
    const std::vector<float> x = wave(n, 0.7);
    const std::vector<float> weight = wave(n, 0.3);
    std::vector<float> y(n);
    rms_norm(x.data(), weight.data(), 1e-5F, n, y.data());
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double scale = 1 / std::sqrt(squares / n + 1e-5);
    for (int i = 0; i < n; ++i) {
      const double exact = x[i] * scale * weight[i];
      EXPECT_NEAR(y[i], exact, 1e-6 * std::abs(exact) + 1e-30) << n << " " << i;
    }
  }
}

TEST(Rows, LayerNormEqualsItsDefinitionFarFromZero) {
  for (const int n : {1, 15, 16, 17, 256, 1000}) {
    for (const float offset : {0.0F, 1000.0F}) {
      std::vector<float> x = wave(n, 0.7);
      for (float& value : x) value += offset;
      const std::vector<float> weight = wave(n, 0.3), bias = wave(n, 0.2);
      std::vector<float> y(n);
      layer_norm(x.data(), weight.data(), bias.data(), 1e-5F, n, y.data());
      double mean = 0, squares = 0;
      for (const float v : x) mean += v;
      mean /= n;
      for (const float v : x) squares += (v - mean) * (v - mean);
      const double scale = 1 / std::sqrt(squares / n + 1e-5);
      // The mean is rounded: an ulp of the values, of which 1e-5 is a small variance.
      const double tolerance = n == 1 ? 1e-2 * offset + 1e-5 : 1e-6 * (1 + offset);
      for (int i = 0; i < n; ++i) {
        EXPECT_NEAR(y[i], (x[i] - mean) * scale * weight[i] + bias[i], 3 * tolerance)
            << n << " " << i;
      }
    }
  }
}

TEST(Rows, ReluAndGeluEqualTheirDefinitions) {
  const std::vector<float> x = {-200, -20, -3, -1, -1e-3F, 0, 1e-3F, 1, 3, 20, 200};
  std::vector<float> relus = x, gelus = x;
  relu(relus.data(), static_cast<int>(x.size()));
  gelu(gelus.data(), static_cast<int>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(relus[i], x[i] > 0 ? x[i] : 0);
    const double exact = 0.5 * x[i] * std::erfc(-x[i] / std::sqrt(2.0));
    EXPECT_NEAR(gelus[i], exact, 2e-7 * std::abs(double{x[i]})) << x[i];
  }
}

TEST(Rows, SiluMultiplySurvivesTheEndsOfTheRange) {
  const std::vector<float> gate = {-200, -20, -1, 0, 1, 20, 200};
  const std::vector<float> up = {1, 2, 3, 4, 5, 6, 7};
  std::vector<float> y(gate.size());
  silu_multiply(gate.data(), up.data(), static_cast<int>(gate.size()), y.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double exact = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
    EXPECT_NEAR(y[i], exact, 1e-6 * std::abs(exact) + 1e-40) << gate[i];
  }
}

TEST(Rows, RopeTablesCanBeScaledAndStandStill) {
  const RopeTable scaled({1, 0.1F}, 5, 1.25F);
  EXPECT_NEAR(scaled.angles(3).cos[0], 1.25 * std::cos(3.0), 1e-6);
  EXPECT_NEAR(scaled.angles(3).sin[1], 1.25 * std::sin(0.3), 1e-6);
  std::vector<float> head = wave(4, 1.1);
  const std::vector<float> before = head;
  rope(head.data(), RopeTable({0, 0}, 5).angles(4), 4);
  EXPECT_EQ(head, before);
}

TEST(Rows, RopeTurnsPairsByThePositionsAngle) {
  const int head_dim = 8;
  const std::vector<float> frequencies = {1, 0.1F, 0.01F, 0.001F};
  const RopeTable table(frequencies, 100);
  for (const int position : {0, 1, 99}) {
    std::vector<float> head = wave(head_dim, 1.1);
    const std::vector<float> before = head;
    rope(head.data(), table.angles(position), head_dim);
    for (int i = 0; i < 4; ++i) {
      const double angle = static_cast<float>(position) * frequencies[i];
      EXPECT_NEAR(head[i], before[i] * std::cos(angle) - before[i + 4] * std::sin(angle), 1e-6);
      EXPECT_NEAR(head[i + 4], before[i + 4] * std::cos(angle) + before[i] * std::sin(angle), 1e-6);
    }
  }
}

TEST(Rows, StoreRowRoundsHalfToEven) {
  const std::vector<float> row = {1.0F, 1.00390625F, 1.01171875F, -2.5F};
  std::vector<bf16> narrow(row.size());
  store_row(row.data(), 4, ElementType::kBf16, narrow.data());
  EXPECT_EQ(narrow[0].bits, 0x3f80);
  EXPECT_EQ(narrow[1].bits, 0x3f80);  // a tie: to the even neighbour below
  EXPECT_EQ(narrow[2].bits, 0x3f82);  // a tie: to the even neighbour above
  EXPECT_EQ(narrow[3].bits, 0xc020);
}

}  // namespace
}  // namespace kvlane
