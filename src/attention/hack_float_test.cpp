// Attention in floats on pages of codes: both arithmetics are the same in double precision, and the
// kernels are right within what floats lose.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attention/hack_float_arithmetic.h"
#include "attention/hack_page_fixture.h"
#include "quant/hadamard.h"

namespace kvlane::hack_page_fixture {
namespace {

constexpr HackOperand kOperands[] = {HackOperand::kCodes, HackOperand::kValues};

const char* name_of(HackOperand operand) {
  return operand == HackOperand::kCodes ? "codes" : "values";
}

TEST(HackFloatArithmetic, ScoresAreProductsOfWhatCodesStandFor) {
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 1, 1);
      const HackShape& shape = scene.shape();
      std::vector<double> q(d);
      double sums[kHackPartitionsMax] = {};
      for (int i = 0; i < d; ++i) {
        q[i] = scene.gauss();
        sums[i / shape.key_partition()] += q[i];
      }
      for (int token = 0; token < kBlockTokens; ++token) {
        const auto key = scene.coded_row(0, true, token);
        double expected = 0;
        double magnitude = 0;
        for (int i = 0; i < d; ++i) {
          expected += q[i] * key[i];
          magnitude += std::abs(q[i] * key[i]);
        }
        const double bound = 1e-12 * magnitude;
        ASSERT_NEAR(hack_arithmetic::score_on_codes(shape, q.data(), sums, scene.slab(0), token),
                    expected, bound)
            << format << ", head_dim " << d;
        ASSERT_NEAR(hack_arithmetic::score_on_values(shape, q.data(), scene.slab(0), token),
                    expected, bound)
            << format << ", head_dim " << d;
      }
    }
  }
}

TEST(HackFloatArithmetic, OutputsAreSumsOfWhatCodesStandFor) {
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 1, 2);
      const HackShape& shape = scene.shape();
      std::vector<double> weights(kBlockTokens);
      for (double& x : weights) x = std::exp2(-std::abs(3 * scene.gauss()));
      std::vector<double> expected(d, 0.0);
      std::vector<double> magnitude(d, 0.0);
      for (int token = 0; token < kBlockTokens; ++token) {
        const auto value = scene.coded_row(0, false, token);
        for (int i = 0; i < d; ++i) {
          expected[i] += weights[token] * value[i];
          magnitude[i] += std::abs(weights[token] * value[i]);
        }
      }
      std::vector<double> on_codes(d, 0.0);
      std::vector<double> on_values(d, 0.0);
      hack_arithmetic::add_on_codes(shape, weights.data(), scene.slab(0), on_codes.data());
      hack_arithmetic::add_on_values(shape, weights.data(), scene.slab(0), on_values.data());
      for (int i = 0; i < d; ++i) {
        ASSERT_NEAR(on_codes[i], expected[i], 1e-12 * magnitude[i]) << format << ", " << d;
        ASSERT_NEAR(on_values[i], expected[i], 1e-12 * magnitude[i]) << format << ", " << d;
      }
    }
  }
}

// The query of a row as kernels have it.
std::vector<float> query_of(const Scene& scene, int row) {
  std::vector<float> q(kTileHeadDimMax);
  load_hack_query_scalar(scene.shape(), scene.query(), row, q.data());
  return q;
}

// What float rounding can lead away from: the exact output of a row, and how far at most.
struct FloatExpected {
  std::vector<double> out;
  std::vector<double> error;
};

// With u = 2^-24, a sum of n products is off by (n + a few) u times the sum of their magnitudes, in
// which m and s (c - h) count apart; a score that is off by e makes its weight off by e ln 2, as
// does its difference to the greatest; weights that are off by r move an output by at most 2 r
// times its values' mean distance from it. 1e-6: what powers of two and rescaling add to r.
FloatExpected expect_float(Scene& scene, int row) {
  using namespace hack_arithmetic;
  constexpr double kUnit = 0x1p-24;
  constexpr int kTokens = kPages * kBlockTokens;
  const HackShape& shape = scene.shape();
  const int d = shape.key_dim;
  const std::vector<float> q = query_of(scene, row);
  std::vector<double> weights(kTokens, 0.0);
  double max = -1e9;
  double most = 0;
  for (int token = 0; token < kTokens; ++token) {
    const int in_page = token % kBlockTokens;
    std::byte* const page = scene.slab(token / kBlockTokens);
    const auto key = scene.coded_row(token / kBlockTokens, true, in_page);
    double magnitude = 0;
    for (int i = 0; i < d; ++i) {
      const Affine affine = key_affine(shape, page, in_page, i);
      weights[token] += q[i] * key[i];
      magnitude += std::abs(q[i]) * (std::abs(double{affine.m}) + std::abs(key[i] - affine.m));
    }
    max = std::max(max, weights[token]);
    most = std::max(most, magnitude);
  }
  double sum = 0;
  for (double& x : weights) sum += x = std::exp2(x - max);
  const double relative = std::log(2) * (2 * (d + 8) * kUnit * most + 2 * kUnit * most) + 1e-6;
  FloatExpected expected{std::vector<double>(d, 0.0), std::vector<double>(d, 0.0)};
  for (int i = 0; i < d; ++i) {
    double& out = expected.out[i];
    for (int token = 0; token < kTokens; ++token) {
      const auto values = scene.coded_row(token / kBlockTokens, false, token % kBlockTokens);
      out += weights[token] / sum * values[i];
    }
    for (int token = 0; token < kTokens; ++token) {
      const int in_page = token % kBlockTokens;
      std::byte* const page = scene.slab(token / kBlockTokens);
      const double value = scene.coded_row(token / kBlockTokens, false, in_page)[i];
      const double m = value_affine(shape, page, in_page, i).m;
      expected.error[i] += weights[token] / sum *
                           (2 * relative * std::abs(value - out) +
                            (kBlockTokens + 16) * kUnit * (std::abs(m) + std::abs(value - m)));
    }
  }
  return expected;
}

TEST(HackFloatKernel, IsRightWithinFloatRounding) {
  constexpr int kRows = 6;
  for (const char* format : kFormats) {
    for (const int d : {16, 80, 128}) {
      Scene scene(format, d, kRows, 3);
      for (const int row : {0, 5}) {
        const FloatExpected expected = expect_float(scene, row);
        for (const HackOperand operand : kOperands) {
          for (const Isa isa : tiers()) {
            const StateTile tile = scene.run(hack_float_kernel(operand, isa), 0, kRows);
            for (int i = 0; i < d; ++i) {
              ASSERT_NEAR(tile.out[row * d + i] / tile.sum[row], expected.out[i], expected.error[i])
                  << format << ", " << name_of(operand) << ", " << isa_name(isa) << ", head_dim "
                  << d << ", row " << row << ", channel " << i;
            }
          }
        }
      }
    }
  }
}

double mean_square_error(const StateTile& tile, int row, const std::vector<double>& expected) {
  const auto d = static_cast<int>(expected.size());
  double total = 0;
  for (int i = 0; i < d; ++i) {
    const double error = tile.out[row * d + i] / tile.sum[row] - expected[i];
    total += error * error / d;
  }
  return total;
}

// Nothing has 8 bits, so errors are those of floats.
TEST(HackFloatKernel, IsFarMoreExactThanEightBits) {
  for (const char* format : {"hack", "hack:paper", "hack:k=4,v=4"}) {
    Scene scene(format, 128, 1, 6);
    const FloatExpected expected = expect_float(scene, 0);
    for (const Isa isa : tiers()) {
      const double coarse = mean_square_error(scene.run(hack_kernel(isa), 0, 1), 0, expected.out);
      for (const HackOperand operand : kOperands) {
        const StateTile tile = scene.run(hack_float_kernel(operand, isa), 0, 1);
        EXPECT_LT(mean_square_error(tile, 0, expected.out), 1e-4 * coarse)
            << format << ", " << name_of(operand) << ", " << isa_name(isa);
      }
    }
  }
}

// What kernels make of codes is what pages open to, before it is rounded to BF16.
TEST(HackFloatKernel, ComputesOnWhatPagesOpenTo) {
  for (const char* format : kFormats) {
    constexpr int kDim = 80;
    Scene scene(format, kDim, 1, 7);
    std::vector<std::uint16_t> opened(2 * kBlockTokens * kDim);
    scene.format().open_page({0, 0}, scene.slab(0), 0, opened.data());
    for (int row = 0; row < 2 * kBlockTokens; ++row) {
      const auto coded = scene.coded_row(0, row < kBlockTokens, row % kBlockTokens);
      std::vector<float> values(coded.begin(), coded.end());
      if (scene.shape().mix) mix_channels_scalar(values.data(), 1, kDim);
      for (int i = 0; i < kDim; ++i) {
        const float value = to_float(bf16{opened[row * kDim + i]});
        ASSERT_NEAR(value, values[i], 0x1p-8 * std::abs(values[i]) + 1e-5) << format;
      }
    }
  }
}

TEST(HackFloatKernel, ARowHasTheSameBitsInEveryTile) {
  for (const HackOperand operand : kOperands) {
    for (const Isa isa : tiers()) {
      for (const char* format : kFormats) {
        for (const int d : {64, 80, 128}) {
          Scene scene(format, d, kTileRows, 4);
          const HackKernel kernel = hack_float_kernel(operand, isa);
          const StateTile whole = scene.run(kernel, 0, kTileRows);
          for (const auto& [first, rows] : {std::pair{0, 1}, {3, 1}, {1, 7}, {5, 4}, {2, 14}}) {
            const StateTile part = scene.run(kernel, first, rows);
            for (int row = 0; row < rows; ++row) {
              ASSERT_EQ(part.max[row], whole.max[first + row]) << isa_name(isa) << ", " << format;
              ASSERT_EQ(part.sum[row], whole.sum[first + row]) << isa_name(isa) << ", " << format;
              ASSERT_EQ(0, std::memcmp(part.out + row * d, whole.out + (first + row) * d,
                                       d * sizeof(float)))
                  << name_of(operand) << ", " << isa_name(isa) << ", " << format << ", head_dim "
                  << d;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlane::hack_page_fixture
