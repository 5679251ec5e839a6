// The figures of a token against a plain implementation in double precision.
// SPDX-License-Identifier: Apache-2.0
#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

std::vector<float> random_logits(int vocab, std::uint32_t seed, float scale) {
  std::vector<float> logits(vocab);
  for (int i = 0; i < vocab; ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    logits[i] = scale * static_cast<float>(uniform_unit(words[0], words[1]) * 2 - 1);
  }
  return logits;
}

std::vector<double> log_softmax(const std::vector<float>& logits) {
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  std::vector<double> logs;
  for (const float logit : logits) logs.push_back(logit - std::log(total));
  return logs;
}

TEST(Divergence, EqualsTheDefinition) {
  for (const int vocab : {1, 2, 300, 5000}) {
    for (const float scale : {0.1F, 5.0F, 40.0F}) {
      const auto reference = random_logits(vocab, 1, scale);
      auto tested = random_logits(vocab, 2, scale / 10);
      for (int i = 0; i < vocab; ++i) tested[i] += reference[i];
      const auto p = log_softmax(reference);
      const auto q = log_softmax(tested);
      double divergence = 0;
      for (int i = 0; i < vocab; ++i) divergence += std::exp(p[i]) * (p[i] - q[i]);
      const TokenScore score = Reference(reference).compare(tested, vocab / 2);
      // exp() in float: 1e-7 of each p, times differences of logits up to a tenth of the scale.
      EXPECT_NEAR(score.divergence, divergence, 1e-6 * scale + 1e-9) << vocab << " " << scale;
      EXPECT_NEAR(score.loss, -q[vocab / 2], 1e-6 * (scale + 10));
      EXPECT_NEAR(Reference(reference).loss(vocab / 2), -p[vocab / 2], 1e-6 * (scale + 10));
    }
  }
}

TEST(Divergence, OfEqualLogitsIsExactlyZero) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const auto logits = random_logits(1000, seed, 20);
    const TokenScore score = Reference(logits).compare(logits, 7);
    EXPECT_EQ(score.divergence, 0);
    EXPECT_TRUE(score.agrees);
    EXPECT_EQ(score.loss, Reference(logits).loss(7));
  }
}

TEST(Divergence, AConstantAddedToAllLogitsChangesNothing) {
  const auto reference = random_logits(1000, 5, 20);
  auto tested = reference;
  for (float& logit : tested) logit += 64;
  // The sums are rounded to 64 * 2^-24 = 4e-6.
  EXPECT_LT(Reference(reference).compare(tested, 7).divergence, 5e-6);
}

TEST(Divergence, IsNeverNegative) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const auto reference = random_logits(100, seed, 3);
    auto tested = reference;
    tested[seed % 100] = std::nextafter(tested[seed % 100], 100.0F);
    EXPECT_GE(Reference(reference).compare(tested, 0).divergence, 0);
  }
}

TEST(Divergence, TheMostLikelyTokenDecidesAgreement) {
  const std::vector<float> reference = {1, 3, 2};
  EXPECT_TRUE(Reference(reference).compare(std::vector<float>{0, 9, 8}, 0).agrees);
  EXPECT_FALSE(Reference(reference).compare(std::vector<float>{0, 8, 9}, 0).agrees);
  EXPECT_TRUE(Reference(reference).compare(std::vector<float>{0, 9, 9}, 0).agrees)
      << "the first of equals";
}

TEST(Divergence, WhatIsNotFiniteShows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(Reference(std::vector<float>{1, nan}).finite());
  EXPECT_FALSE(Reference(std::vector<float>{1, inf}).finite());
  const std::vector<float> good = {1, 2};
  EXPECT_FALSE(std::isfinite(Reference(good).compare(std::vector<float>{1, nan}, 0).divergence));
  EXPECT_FALSE(std::isfinite(Reference(good).compare(std::vector<float>{nan, 1}, 0).divergence));
  EXPECT_FALSE(std::isfinite(Reference(good).compare(std::vector<float>{inf, 1}, 0).divergence));
}

}  // namespace
}  // namespace kvlane
