// Streams are reproducible, apart from each other, and have the moments they claim.
// SPDX-License-Identifier: Apache-2.0
#include "bench/random_stream.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlane {
namespace {

constexpr int kDraws = 20000;

struct Moments {
  double mean = 0;
  double variance = 0;
};

template <class Draw>
Moments moments(Draw draw) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = draw();
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kDraws;
  return {mean, squares / kDraws - mean * mean};
}

// Six standard errors of a mean: less than one run in 10^8 of a right sampler would fail, and the
// seeds are fixed.
double tolerance(double variance) { return 6 * std::sqrt(variance / kDraws); }

TEST(RandomStream, SameNameSameNumbers) {
  RandomStream a(7, Purpose::kLengths, 3);
  RandomStream b(7, Purpose::kLengths, 3);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a.unit(), b.unit());
}

TEST(RandomStream, OtherNamesOtherNumbers) {
  const double value = RandomStream(7, Purpose::kLengths, 3).unit();
  EXPECT_NE(value, RandomStream(8, Purpose::kLengths, 3).unit());
  EXPECT_NE(value, RandomStream(7, Purpose::kArrivals, 3).unit());
  EXPECT_NE(value, RandomStream(7, Purpose::kLengths, 4).unit());
  EXPECT_NE(value, RandomStream(7, Purpose::kLengths, 3 + (std::uint64_t{1} << 32)).unit());
}

TEST(RandomStream, NormalHasItsMoments) {
  RandomStream random(1, Purpose::kLengths, 0);
  const Moments found = moments([&] { return random.normal(); });
  EXPECT_NEAR(found.mean, 0, tolerance(1));
  EXPECT_NEAR(found.variance, 1, tolerance(2));
}

TEST(RandomStream, GammaHasItsMoments) {
  for (const double shape : {0.05, 0.5, 1.0, 2.5, 40.0}) {
    RandomStream random(1, Purpose::kArrivals, 0);
    const Moments found = moments([&] { return random.gamma(shape); });
    EXPECT_NEAR(found.mean, shape, tolerance(shape)) << shape;
    // The fourth central moment of a gamma variable is 3 shape^2 + 6 shape.
    EXPECT_NEAR(found.variance, shape, tolerance(2 * shape * shape + 6 * shape)) << shape;
  }
}

TEST(RandomStream, BetaHasItsMeanAndStaysInRange) {
  RandomStream random(1, Purpose::kLengths, 0);
  const Moments found = moments([&] {
    const double value = random.beta(0.8, 3.2);
    EXPECT_GE(value, 0);
    EXPECT_LE(value, 1);
    return value;
  });
  EXPECT_NEAR(found.mean, 0.2, tolerance(0.2 * 0.8 / 5));
  EXPECT_NEAR(found.variance, 0.2 * 0.8 / 5, 0.003);
}

TEST(TokenIds, AnyPartIsTheSameAsInTheWhole) {
  std::vector<std::int32_t> whole;
  append_token_ids(5, Purpose::kTraceBlock, 9, 0, 40, 1000, whole);
  ASSERT_EQ(whole.size(), 40u);
  for (const std::int32_t id : whole) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 1000);
  }
  for (std::size_t first = 0; first < 8; ++first) {
    std::vector<std::int32_t> part;
    append_token_ids(5, Purpose::kTraceBlock, 9, first, 20, 1000, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int>(first)));
  }
}

TEST(TokenIds, AVocabularyOfOneHasOneId) {
  std::vector<std::int32_t> ids;
  append_token_ids(5, Purpose::kOwnTokens, 0, 0, 4, 1, ids);
  EXPECT_EQ(ids, std::vector<std::int32_t>(4, 0));
}

}  // namespace
}  // namespace kvlane
