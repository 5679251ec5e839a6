// Kernels of scores against double precision, and their noise; tiers have the same bits.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/bf16.h"
#include "base/random.h"
#include "format/shape.h"

namespace kvlane {
namespace {

constexpr int padded(int count) { return (count + kBlockTokens - 1) / kBlockTokens * kBlockTokens; }

// From -1 to 1.
float any(std::uint32_t what, std::size_t i) {
  const auto words = philox4x32(what, {static_cast<std::uint32_t>(i), 0, 0, 0});
  return static_cast<float>(2 * uniform_unit(words[0], words[1]) - 1);
}

template <class Body>
void for_tiers(const Body& body) {
  for (const Isa isa : kAllIsas) {
    SCOPED_TRACE(isa_name(isa));
    if (isa_supported(isa)) body(score_kernels(isa));
  }
}

TEST(TokenScores, ProductsAreThoseOfBothLayouts) {
  for (const int dim : {1, 15, 16, 40, 64, 128, 256}) {
    std::vector<float> query(dim);
    std::vector<std::uint16_t> rows(kBlockTokens * dim);
    std::vector<float> columns(kBlockTokens * dim);
    for (int i = 0; i < dim; ++i) query[i] = any(1, i);
    for (int token = 0; token < kBlockTokens; ++token) {
      for (int i = 0; i < dim; ++i) {
        const bf16 key = to_bf16(any(2, token * dim + i));
        rows[token * dim + i] = key.bits;
        columns[i * kBlockTokens + token] = to_float(key);
      }
    }
    std::vector<float> first[2];
    for_tiers([&](const ScoreKernels& kernels) {
      std::vector<float> of_block(kBlockTokens), of_rows(kBlockTokens, 7);
      kernels.block_products(query.data(), columns.data(), dim, of_block.data());
      kernels.row_products(query.data(), rows.data(), dim, kBlockTokens - 1, of_rows.data());
      EXPECT_EQ(of_rows.back(), 7) << "one row fewer was asked for";
      of_rows.pop_back();
      for (int token = 0; token < kBlockTokens - 1; ++token) {
        double sum = 0, magnitude = 0;
        for (int i = 0; i < dim; ++i) {
          const double term = double{query[i]} * columns[i * kBlockTokens + token];
          sum += term;
          magnitude += std::abs(term);
        }
        // As many roundings as there are terms, each 2^-24 of a partial sum at most.
        EXPECT_NEAR(of_block[token], sum, (dim + 1) * 0x1p-24 * magnitude);
        EXPECT_NEAR(of_rows[token], sum, (dim / 16 + 6) * 0x1p-24 * magnitude);
      }
      if (first[0].empty()) {
        first[0] = of_block;
        first[1] = of_rows;
      }
      EXPECT_EQ(of_block, first[0]);
      EXPECT_EQ(of_rows, first[1]);
    });
  }
}

TEST(TokenScores, ProbabilitiesAreThoseOfDoublePrecision) {
  for (const int count : {1, 2, 15, 16, 17, 63, 64, 65, 1000}) {
    for (const float spread : {0.0F, 1.0F, 30.0F, 1000.0F}) {
      const float scale = 0.75F;
      std::vector<float> products(padded(count), std::numeric_limits<float>::quiet_NaN());
      for (int i = 0; i < count; ++i) products[i] = spread * any(3, i);
      std::vector<double> expected(count);
      double max = -1e300, sum = 0;
      for (int i = 0; i < count; ++i) max = std::max(max, double{products[i]} * scale);
      for (int i = 0; i < count; ++i) {
        sum += expected[i] = std::exp(double{products[i]} * scale - max);
      }
      std::vector<float> first;
      for_tiers([&](const ScoreKernels& kernels) {
        std::vector<float> probabilities = products;
        std::vector<float> scores(count, 0.5F);
        kernels.add_probabilities(scale, count, probabilities.data(), scores.data());
        for (int i = 0; i < count; ++i) {
          // The power's argument, 87 in size at most, is rounded three times; it is a difference of
          // two products, each rounded once.
          const double p = expected[i] / sum;
          const double error = 5e-7 + 0x1p-24 * (3 * 87 + 2 * spread * scale);
          EXPECT_NEAR(probabilities[i], p, p * error + 1e-37) << i;
          EXPECT_EQ(scores[i], 0.5F + probabilities[i]);
        }
        if (first.empty()) first = scores;
        EXPECT_EQ(scores, first);
      });
    }
  }
}

TEST(TokenScores, WhatIsNoNumberMakesScoresThatAreNone) {
  for_tiers([&](const ScoreKernels& kernels) {
    std::vector<float> products(kBlockTokens, 1.0F);
    products[5] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> scores(30);
    kernels.add_probabilities(1, 30, products.data(), scores.data());
    for (const float score : scores) EXPECT_TRUE(std::isnan(score));
  });
}

std::vector<float> noise_of(const ScoreKernels& kernels, const NoiseOf& query, int count) {
  std::vector<float> noise(padded(count));
  kernels.add_noise(query, nullptr, count, noise.data());
  noise.resize(count);
  return noise;
}

TEST(GumbelNoise, HasItsMomentsAndIsThatOfDoublePrecision) {
  constexpr int kCount = 1 << 18;
  const std::vector<float> noise = noise_of(score_kernels(best_isa()), {1, 2, 3, 4}, kCount);
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const auto words =
        philox4x32(std::uint64_t{0x67756D62} << 32 | 1, {std::uint32_t(i / 4), 4, 3, 2});
    const double inner = -std::log(((words[i % 4] >> 9) + 0.5) * 0x1p-23);
    // Relative errors of the inner logarithm are absolute ones of the outer.
    ASSERT_NEAR(noise[i], -std::log(inner), 5e-7 + 3e-7 * std::abs(std::log(inner)));
    sum += noise[i];
    squares += double{noise[i]} * noise[i];
  }
  constexpr double kMean = 0.5772156649;      // Euler's constant
  constexpr double kVariance = 1.6449340668;  // pi^2 / 6
  const double mean = sum / kCount;
  // Four standard errors; the fourth central moment is 5.4 times the squared variance.
  EXPECT_NEAR(mean, kMean, 4 * std::sqrt(kVariance / kCount));
  EXPECT_NEAR(squares / kCount - mean * mean, kVariance, 4 * kVariance * std::sqrt(4.4 / kCount));
}

TEST(GumbelNoise, DependsOnAllItIsAboutAndOnNothingElse) {
  const std::vector<float> one = noise_of(score_kernels(Isa::kScalar), {1, 2, 3, 4}, 100);
  for_tiers([&](const ScoreKernels& kernels) {
    EXPECT_EQ(noise_of(kernels, {1, 2, 3, 4}, 100), one);
    EXPECT_NE(noise_of(kernels, {2, 2, 3, 4}, 100), one);
    EXPECT_NE(noise_of(kernels, {1, 3, 3, 4}, 100), one);
    EXPECT_NE(noise_of(kernels, {1, 2, 2, 4}, 100), one);
    EXPECT_NE(noise_of(kernels, {1, 2, 3, 5}, 100), one);
    // Any order of positions.
    std::vector<std::int32_t> positions(100);
    for (int i = 0; i < 100; ++i) positions[i] = i * 37 % 100;
    std::vector<float> mixed(padded(100));
    kernels.add_noise({1, 2, 3, 4}, positions.data(), 100, mixed.data());
    for (int i = 0; i < 100; ++i) EXPECT_EQ(mixed[i], one[positions[i]]) << i;
  });
}

}  // namespace
}  // namespace kvlane
